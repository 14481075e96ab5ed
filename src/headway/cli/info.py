"""``headway info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["info"]


def info(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print it.")] = "text",
) -> None:
    """Tell what is in a model folder: task, architecture, vocabulary, weights."""
    from headway.bundle import Bundle

    bundle = Bundle.load(model)
    weights = sum(parameter.numel() for parameter in bundle.model.parameters())
    facts: dict[str, object] = {
        "folder": str(model),
        **{f"task.{key}": value for key, value in bundle.task.as_dict().items()},
        **{f"model.{key}": value for key, value in bundle.model.config.as_dict().items()},
        "source tokenizer": f"{bundle.source_tokenizer.kind}, {bundle.source_tokenizer.vocab_size:,} tokens",
        "target tokenizer": f"{bundle.target_tokenizer.kind}, {bundle.target_tokenizer.vocab_size:,} tokens",
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
