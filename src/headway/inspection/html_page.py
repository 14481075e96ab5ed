r"""Render an inspection as one self-contained HTML page that needs no network and no other files.

``assets/page.html`` is filled with the style sheet and the scripts from the same folder, and with the numbers as JSON
in a non-executable ``<script>``. Text is never interpreted as markup: "<" is written ``\u003c`` in the JSON, so
"</script>" in a token does not end the script, and the page inserts tokens as text. A content security policy forbids
all requests.

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
from headway.inspection.results import KIND_NAMES, MAX_DRAWN_TOKENS, AttentionMap, Inspection, Side
from headway.inspection.visible_tokens import is_right_to_left, make_visible

# For each kind of attention: the names of its rows and columns, and a description.
_WORDS: dict[Kind, tuple[str, str, str]] = {
    "cross": (
        "target token being predicted (query)",
        "source token (key)",
        "Where the decoder looks in the source while it predicts a target token. Each row is one predicted token.",
    ),
    "pooling": (
        "the whole text (query)",
        "token (key)",
        "How much each token contributes to the one vector from which the label is predicted.",
    ),
    "encoder": (
        "source token (query)",
        "source token (key)",
        "Which source tokens each source token attends to. Every token can see all others.",
    ),
    "decoder": (
        "token being predicted (query)",
        "token already read (key)",
        "Which of the previous tokens the decoder uses to predict a token. It never sees later tokens, so the upper "
        "right is empty.",
    ),
}


def render_html(
    inspection: Inspection, kind: Kind | None = None, layer: int | None = None, head: int | None = None
) -> str:
    """Return the HTML page of an inspection.

    ``kind``, ``layer`` and ``head`` select the map that is shown first, as in :meth:`Inspection.select_map`. If the
    text is longer than :data:`MAX_DRAWN_TOKENS` tokens, the page omits the attention and shows a note.

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
    drawn = inspection.longer_length() <= MAX_DRAWN_TOKENS
    omission = (
        f"This text has {inspection.longer_length():,} tokens. Attention over more than {MAX_DRAWN_TOKENS} tokens "
        "cannot be drawn legibly, so this page omits it; headway inspect can write it to a .json file."
    )
    attribution = inspection.attribution
    same = ("model", "architecture", "source", "target", "truncated", "alignment")
    return {
        **{name: getattr(inspection, name) for name in same},
        "given": inspection.target_given,
        "omitted": None if drawn else omission,
        "sides": {side: [make_visible(token) for token in inspection.tokens(side)] for side in texts},
        "rightToLeft": {side: is_right_to_left(text) for side, text in texts.items()},
        "kinds": [_kind(kind, inspection.maps_of_kind(kind)) for kind in inspection.kinds] if drawn else [],
        "promptLength": inspection.prompt_length,
        "hiddenPositions": inspection.hidden_positions,
        "logProbability": inspection.log_probability,
        "steps": [
            {
                "probability": math.exp(step.log_probability),
                "rank": step.rank,
                "forced": step.forced,
                "choices": None if step.entropy is None else math.exp(step.entropy),
                "alternatives": [[make_visible(top.token), math.exp(top.log_probability)] for top in step.alternatives],
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
        "rows": maps[0].row_side,
        "columns": maps[0].column_side,
        "rowsName": rows,
        "columnsName": columns,
        "about": about,
        "maps": [{"layer": each.layer, "heads": each.heads, "weights": _packed(each)} for each in maps],
    }


def _packed(each: AttentionMap) -> str:
    steps = (each.weights.clamp(0, 1) * 65535).round().to(torch.int32).numpy().astype("<u2")
    return base64.b64encode(steps.tobytes()).decode("ascii")
