"""``headway info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from headway.text.interface import TextTokenizer

__all__ = ["info"]


def info(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print it.")] = "text",
) -> None:
    """Describe a model folder: its task, architecture, vocabularies and weights, and the form in which it runs."""
    from headway.bundle import ClassifierBundle, load_bundle
    from headway.engine.accelerate import forward_form
    from headway.engine.search_model import search_form
    from headway.models.registry import architecture_of

    bundle = load_bundle(model)
    weights = sum(parameter.numel() for parameter in bundle.model.parameters())
    facts: dict[str, object] = {
        "folder": str(model),
        **{f"task.{key}": value for key, value in bundle.task.as_dict().items()},
        **{f"model.{key}": value for key, value in bundle.model.config.as_dict().items()},
        **(
            {"labels": ", ".join(bundle.labels), "tokenizer": _about(bundle.tokenizer)}
            if isinstance(bundle, ClassifierBundle)
            else {
                "source tokenizer": _about(bundle.source_tokenizer),
                "target tokenizer": _about(bundle.target_tokenizer),
            }
        ),
        "forward pass": forward_form(bundle.model),
        **({"search": search_form(bundle.model)} if architecture_of(bundle.model.config).output == "tokens" else {}),
        "weights": weights,
        "bytes": sum(file.stat().st_size for file in model.iterdir()),
    }
    if form == "json":
        print(json.dumps(facts, ensure_ascii=False))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        print(
            f"{key:<{width}}  {value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else f"{key:<{width}}  {value}"
        )


def _about(tokenizer: TextTokenizer) -> str:
    return f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
