"""Drawings of what a model does with a text: unrolled over its tokens, or the numbers of one attention head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.bundle import AnyBundle, load_bundle
from headway.diagrams.draw import Level, describe_options, name_of
from headway.diagrams.drawing import Drawing
from headway.diagrams.head import draw_head, first_attention
from headway.diagrams.unrolled import draw_tokens
from headway.errors import ConfigError
from headway.inspection.inspect_text import inspect
from headway.inspection.results import Inspection
from headway.tasks import load
from headway.text.base import BOS, EOS


def draw_text(folder: Path, text: str, level: Level) -> Drawing:
    """Return the drawing of a model that reads ``text``.

    Raises:
        HeadwayError: The text is blank or too long, or the level has no drawing of a text.
    """
    if level not in ("model", "attention"):
        raise ConfigError(
            f"level = {level!r} has no drawing of a text; choose model or attention, or leave out the text"
        )
    bundle = load_bundle(folder)
    drawing = Drawing(f"{name_of(bundle.model)}: “{text}”")
    if level == "attention":
        _draw_head(bundle, text, drawing)
    else:
        settings: dict[str, Any] = {"max_new_tokens": 1} if bundle.capability == "continues" else {}
        _draw_tokens(bundle, inspect(load(folder, device="cpu"), text, **settings), drawing)
    drawing.caption += describe_options(bundle.model.config)
    return drawing


def _draw_tokens(bundle: AnyBundle, seen: Inspection, drawing: Drawing) -> None:
    source, inputs, outputs = seen.source_tokens, seen.tokens("input"), seen.tokens("target")
    weights = seen.maps[0].weights[0, 0].tolist() if seen.maps else ()
    match bundle.capability:
        case "labels":
            source, inputs, outputs = (), source, (next(iter(seen.labels or {})),)
        case "fills":
            hidden = dict(zip(seen.hidden_positions or (), outputs, strict=True))
            predicted = tuple(hidden.get(place, token) for place, token in enumerate(source))
            source, inputs, outputs = (), source, predicted
        case "continues":
            source = ()
    draw_tokens(bundle.model, drawing, source, inputs, outputs, weights)


def _draw_head(bundle: AnyBundle, text: str, drawing: Drawing) -> None:
    """Draw the first head of the first block, in an encoder-decoder that of the encoder."""
    tokenizer: Any = bundle.tokenizers["source"]
    ids = tokenizer.encode(bundle.normalized(text))
    whole: Any = bundle
    match bundle.capability:
        case "translates":
            ids = whole.token_template.fill().add_to_source(ids)
        case "continues":
            ids = [*whole.prompt_prefix, *ids]
        case "fills":
            ids = [BOS, *ids, EOS]
        case "labels":
            ids = [*ids, EOS]
    given = first_attention(bundle.model, ids)
    draw_head(given, tokenizer.display(given.tokens), drawing)
