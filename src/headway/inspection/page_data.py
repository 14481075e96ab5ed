"""The JSON data of an inspection, for the pages of ``headway inspect`` and of the service.

Attention weights are integers from 0 to ``max_weight``, encoded as base64: two bytes each (little-endian), or one byte
each if ``max_weight`` is at most 255. Invisible characters in tokens are replaced by visible ones; see
:mod:`headway.text.visible_tokens`.
"""

from __future__ import annotations

import base64
import math
import unicodedata
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from headway.inspection.capture import Kind
from headway.predict.language_modeling.predicted_tokens import PredictedToken
from headway.text.visible_tokens import make_visible

if TYPE_CHECKING:
    from headway.inspection.results import AttentionMap, Inspection, Side

MAX_DRAWN_TOKENS = 200  # for each side; longer texts would be illegible in a picture and slow in a page
PAGE_MAX_WEIGHT = 65_535  # integer that represents a weight of 1 in files, whose size is not critical
REPLY_MAX_WEIGHT = 255  # integer that represents a weight of 1 in replies: half the size, in steps of 0.4 %


def page_data(inspection: Inspection, max_weight: int = PAGE_MAX_WEIGHT) -> dict[str, Any]:
    """Return the values of an inspection as JSON data.

    If the text has more than :data:`MAX_DRAWN_TOKENS` tokens, ``kinds`` is empty, and ``omitted`` contains the reason.

    Args:
        inspection: The inspection to convert.
        max_weight: The integer that represents an attention weight of 1.
    """
    target = inspection.target or ""
    texts: dict[Side, str] = {"source": inspection.source, "input": target, "target": target, "text": ""}
    drawn = inspection.longer_length() <= MAX_DRAWN_TOKENS
    omission = (
        f"This text has {inspection.longer_length():,} tokens. Attention over more than {MAX_DRAWN_TOKENS} tokens "
        "cannot be drawn legibly, so this page omits it; headway inspect can write it to a .json file."
    )
    attribution = inspection.attribution
    same = ("model", "architecture", "source", "target", "target_given", "truncated", "log_probability")
    positions = ("alignment", "alignment_layer", "prompt_length", "hidden_positions")
    return {
        **{name: getattr(inspection, name) for name in (*same, *positions)},
        "omitted": None if drawn else omission,
        "sides": {side: [make_visible(token) for token in inspection.tokens(side)] for side in texts},
        "right_to_left": {side: is_right_to_left(text) for side, text in texts.items()},
        "steps": [predicted_token_data(step) for step in inspection.steps],
        "max_weight": max_weight,
        "kinds": [_kind(kind, inspection, max_weight) for kind in inspection.kinds] if drawn else [],
        "labels": None if inspection.labels is None else list(inspection.labels.items()),
        "attribution": attribution and asdict(attribution),
    }


def is_right_to_left(text: str) -> bool:
    """Return whether most letters of ``text`` belong to a script written from right to left."""
    directions = [unicodedata.bidirectional(character) for character in text]
    return sum(direction in ("R", "AL") for direction in directions) > directions.count("L")


def predicted_token_data(step: PredictedToken) -> dict[str, Any]:
    """Return the values of a predicted token as JSON data. ``choices`` is the exponential of the entropy."""
    return {
        "token": step.token,
        "probability": math.exp(step.log_probability),
        "rank": step.rank,
        "forced": step.forced,
        "choices": None if step.entropy is None else math.exp(step.entropy),
        "alternatives": [[make_visible(top.token), math.exp(top.log_probability)] for top in step.alternatives],
    }


def _kind(kind: Kind, inspection: Inspection, max_weight: int) -> dict[str, Any]:
    maps = inspection.maps_of_kind(kind)
    packed = [
        {"layer": attention_map.layer, "heads": attention_map.heads, "weights": _packed(attention_map, max_weight)}
        for attention_map in maps
    ]
    return {"id": kind, "rows": maps[0].row_side, "columns": maps[0].column_side, "maps": packed}


def _packed(each: AttentionMap, max_weight: int) -> str:
    steps = (each.weights.clamp(0, 1) * max_weight).round().to(torch.int32).numpy()
    return base64.b64encode(steps.astype("u1" if max_weight <= REPLY_MAX_WEIGHT else "<u2").tobytes()).decode("ascii")
