"""``headway info``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from torch import nn

    from headway.text.interface import TextTokenizer

__all__ = ["info"]


def info(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print it.")] = "text",
) -> None:
    """Tell what is in a model folder: task, architecture, vocabulary, weights."""
    from headway.bundle import ClassifierBundle, load_bundle

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
        "forward pass": _forward_pass(bundle.model),
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


def _forward_pass(model: nn.Module) -> str:
    """Say how many layers have their fast form in training, scoring and classification, and why others are plain."""
    from headway import kernels
    from headway.engine.accelerate import accelerate, explain

    if not kernels.available():
        return "plain: the compiled kernels do not run on this machine"
    forms = explain(accelerate(model))
    plain = Counter(f"{form.layer} ({form.reason})" for form in forms if form.reason is not None)
    fast = f"{len(forms) - plain.total()} of {len(forms)} layers have a fast form"
    return f"{fast}; plain: {', '.join(f'{count} {name}' for name, count in plain.items())}" if plain else fast


def _about(tokenizer: TextTokenizer) -> str:
    return f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
