"""Display models: a line of text, or in a notebook a table of sizes and the model card."""

from __future__ import annotations

from pathlib import Path

import torch

from headway.bundle import AnyBundle
from headway.notebook_html import details, join_fragments, paragraph, table, text

_SHOWN = 6  # maximum number of languages or labels to show in a line


class ModelWrapper:
    """Base class of objects that apply a model to text. It defines how these objects are displayed.

    Attributes:
        bundle: The model with its tokenizers.
        device: The device on which the model computes.
        folder: The folder from which the model was loaded, or None.
    """

    bundle: AnyBundle
    device: torch.device
    folder: Path | None = None

    def __repr__(self) -> str:
        kind, weights = self.bundle.model.config.kind, _num_weights(self.bundle)
        return f"<{_title(self)}: {kind}, {weights:,} weights, {_vocabulary(self.bundle)}, on {self.device}>"

    def _repr_html_(self) -> str:
        config = self.bundle.model.config.as_dict()
        sizes = [(name, str(value)) for name, value in config.items() if type(value) is int and value]
        rows = [
            ("architecture", str(config["kind"])),
            ("weights", f"{_num_weights(self.bundle):,}"),
            ("vocabulary", _vocabulary(self.bundle)),
            *sizes,
            ("device", str(self.device)),
        ]
        card = None if self.folder is None else self.folder / "README.md"
        return join_fragments(
            paragraph(f"<b>{text(_title(self))}</b>"),
            table((), rows),
            details("Model card", card.read_text(encoding="utf-8")) if card is not None and card.is_file() else "",
        )


def _title(model: ModelWrapper) -> str:
    """Return the name of the class, and the model's languages or labels."""
    facts, name, labels = model.bundle.describe(), type(model).__name__, model.bundle.labels
    sources, targets = facts.get("source_languages", ()), facts.get("target_languages", ())
    if sources and targets:
        return f"{name} {_some(sources)} → {_some(targets)}"
    return f"{name} of {_some(labels)}" if labels else name


def _vocabulary(bundle: AnyBundle) -> str:
    """Return the vocabulary size, or two sizes if the source and the target have different vocabularies."""
    sizes = [f"{tokenizer.vocab_size:,}" for tokenizer in bundle.tokenizers.values()]
    return f"{' and '.join(dict.fromkeys(sizes))} tokens"


def _num_weights(bundle: AnyBundle) -> int:
    return sum(parameter.numel() for parameter in bundle.model.parameters())


def _some(names: tuple[str, ...]) -> str:
    shown, rest = [*names[:_SHOWN]], len(names) - _SHOWN
    return ", ".join([*shown, *([f"{rest:,} more"] if rest > 0 else [])])
