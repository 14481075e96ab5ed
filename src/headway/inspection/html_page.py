r"""Render an inspection as one self-contained HTML page: no network, no other files.

``assets/page.html`` is filled with the style and the script beside it, and with the numbers as JSON in a non-executable
``<script>``. Text is never interpreted as markup: "<" is written ``\u003c`` in the JSON, so that "</script>" in a
token ends nothing, and the page inserts tokens as text. A content security policy forbids every request.

Weights are stored as 16-bit integers (steps of 1/65535) in base 64.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import torch

from headway.inspection.capture import Kind
from headway.inspection.results import DRAWN_TOKENS, KIND_NAMES, AttentionMap, Inspection, Side
from headway.inspection.visible_tokens import is_right_to_left, visible

# What the rows and the columns of each kind of attention are, and what it shows.
_WORDS: dict[Kind, tuple[str, str, str]] = {
    "cross": (
        "target token being predicted (query)",
        "source token (key)",
        "Where the decoder looks in the source while it predicts a target token. Each row is one predicted token.",
    ),
    "pooling": (
        "the whole text (query)",
        "token (key)",
        "How much of each token goes into the one vector that the label is read from.",
    ),
    "encoder": (
        "source token (query)",
        "source token (key)",
        "From which tokens of its own sentence each source token gathers what it needs. Every token sees all others.",
    ),
    "decoder": (
        "target token being predicted (query)",
        "target token already read (key)",
        "Which of the target tokens before it the decoder uses to predict a token. It never sees what comes later, so "
        "the upper right is empty.",
    ),
}


def render_html(
    inspection: Inspection, kind: Kind | None = None, layer: int | None = None, head: int | None = None
) -> str:
    """Return the page; ``kind``, ``layer`` and ``head`` select what it shows first, as in
    :meth:`Inspection.select_map`.

    For a text longer than ``DRAWN_TOKENS`` the page leaves out the attention and says so.

    Raises:
        ConfigError: There is no such attention, layer or head.
    """
    view = None
    if inspection.maps or (kind, layer, head) != (None, None, None):
        first = inspection.select_map(kind, -1 if layer is None else layer, head)
        view = {"kind": first.kind, "layer": first.layer, "head": 0 if head is None else first.heads[0]}
    content = json.dumps({**_content(inspection), "view": view}, ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": html.escape(f"{_shortened(inspection.source)} · {inspection.model}"),
        "css": _asset("page.css"),
        "js": "\n".join(_asset(name) for name in ("basics.js", "attention.js", "page.js")),
        "data": content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files("headway.inspection") / "assets" / name).read_text(encoding="utf-8")


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _content(inspection: Inspection) -> dict[str, Any]:
    """Return the data that the page's script reads."""
    target = inspection.target or ""
    texts: dict[Side, str] = {"source": inspection.source, "input": target, "target": target, "text": ""}
    drawn = inspection.longest() <= DRAWN_TOKENS
    omission = (
        f"This text has {inspection.longest():,} tokens. The attention of more than {DRAWN_TOKENS} cannot be drawn "
        "legibly, so it is left out of this page; headway inspect writes all of it to a .json file."
    )
    attribution = inspection.attribution
    same = ("model", "architecture", "source", "target", "truncated", "alignment")
    return {
        **{name: getattr(inspection, name) for name in same},
        "given": inspection.target_given,
        "omitted": None if drawn else omission,
        "sides": {side: [visible(token) for token in inspection.tokens(side)] for side in texts},
        "rightToLeft": {side: is_right_to_left(text) for side, text in texts.items()},
        "kinds": [_kind(kind, inspection.of_kind(kind)) for kind in inspection.kinds] if drawn else [],
        "logProbability": inspection.log_probability,
        "steps": [
            {
                "probability": math.exp(step.log_probability),
                "rank": step.rank,
                "forced": step.forced,
                "alternatives": [[visible(each.token), math.exp(each.log_probability)] for each in step.alternatives],
            }
            for step in inspection.steps
        ],
        "alignmentLayer": inspection.alignment_layer,
        "labels": None if inspection.labels is None else list(inspection.labels.items()),
        "attribution": attribution and asdict(attribution),
    }


def _kind(kind: Kind, maps: tuple[AttentionMap, ...]) -> dict[str, Any]:
    rows, columns, about = _WORDS[kind]
    return {
        "id": kind,
        "name": KIND_NAMES[kind],
        "rows": maps[0].rows,
        "columns": maps[0].columns,
        "rowsName": rows,
        "columnsName": columns,
        "about": about,
        "maps": [{"layer": each.layer, "heads": each.heads, "weights": _packed(each)} for each in maps],
    }


def _packed(each: AttentionMap) -> str:
    steps = (each.weights.clamp(0, 1) * 65535).round().to(torch.int32).numpy().astype("<u2")
    return base64.b64encode(steps.tobytes()).decode("ascii")
