"""Draw what a model does with a text: the model over the text's tokens, or the numbers of one attention head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.bundle import load_bundle
from headway.diagrams.draw import Level, architecture_name, describe_options, draw_tokens
from headway.diagrams.drawing import Drawing
from headway.diagrams.head import draw_head
from headway.diagrams.head_input import first_attention
from headway.diagrams.unrolled import Tokens
from headway.errors import ConfigError
from headway.inspection.inspect_text import inspect
from headway.inspection.results import Inspection
from headway.tasks import load
from headway.text.base import BOS, EOS


def draw_text(folder: Path, text: str, level: Level) -> Drawing:
    """Return the drawing of a model with the input ``text``.

    Raises:
        HeadwayError: The text is blank or too long, or the level cannot show a text.
    """
    if level not in ("model", "attention"):
        raise ConfigError(f"level = {level!r} cannot show a text; choose model or attention, or leave out the text")
    bundle = load_bundle(folder)
    drawing = Drawing(f"{architecture_name(bundle.model)}: “{text}”")
    if level == "attention":
        _draw_head(bundle, text, drawing)
    else:
        limit = 1 if bundle.capability == "continues" else None
        draw_tokens(bundle.model, drawing, _tokens(inspect(load(folder, device="cpu"), text, max_new_tokens=limit)))
    drawing.caption += describe_options(bundle.model.config)
    return drawing


def _tokens(seen: Inspection) -> Tokens:
    source, outputs = seen.source_tokens, seen.tokens("target")
    if seen.labels is not None:
        return Tokens((), source, (next(iter(seen.labels)),))
    if seen.hidden_positions is not None:
        hidden = dict(zip(seen.hidden_positions, outputs, strict=True))
        return Tokens((), source, tuple(hidden.get(place, token) for place, token in enumerate(source)))
    if seen.prompt_length is not None:
        return Tokens((), seen.tokens("input"), outputs)
    return Tokens(source, seen.tokens("input"), outputs, seen.maps[0].weights[0, 0].tolist() if seen.maps else ())


def _draw_head(bundle: Any, text: str, drawing: Drawing) -> None:
    """Draw the first head of the first block; in an encoder-decoder, of the encoder's first block."""
    tokenizer = bundle.tokenizers["source"]
    ids = tokenizer.encode(bundle.normalized(text))
    match bundle.capability:
        case "translates":
            ids = bundle.token_template.fill().add_to_source(ids)
        case "continues":
            ids = [*bundle.prompt_prefix, *ids]
        case "fills":
            ids = [BOS, *ids, EOS]
        case "labels":
            ids = [*ids, EOS]
    head = first_attention(bundle.model, ids)
    draw_head(head, tokenizer.display(head.tokens), drawing)
