r"""Render an inspection as one self-contained HTML page that needs no network and no other files.

``assets/page.html`` is filled with the style sheet and the scripts from the same folder, and with the numbers as JSON
in a non-executable ``<script>``. Text is never interpreted as markup: "<" is written ``\u003c`` in the JSON, so
"</script>" in a token does not end the script, and the page inserts tokens as text. A content security policy forbids
all requests.
"""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from headway.inspection.capture import Kind
from headway.inspection.page_data import page_data

if TYPE_CHECKING:
    from headway.inspection.results import Inspection


def render_html(
    inspection: Inspection, kind: Kind | None = None, layer: int | None = None, head: int | None = None
) -> str:
    """Return the HTML page of an inspection.

    ``kind``, ``layer`` and ``head`` select the map that is shown first, as in :meth:`Inspection.select_map`. If the
    text has more than :data:`MAX_DRAWN_TOKENS` tokens, the page shows a note instead of the attention.

    Raises:
        ConfigError: There is no such attention, layer or head.
    """
    view = None
    if inspection.maps or (kind, layer, head) != (None, None, None):
        first = inspection.select_map(kind, -1 if layer is None else layer, head)
        view = {"kind": first.kind, "layer": first.layer, "head": 0 if head is None else first.heads[0]}
    content = json.dumps({**page_data(inspection), "view": view}, ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": html.escape(f"{_shortened(inspection.source)} · {inspection.model}"),
        "css": _asset("page.css") + _asset("attention.css"),
        "js": _joined_modules("basics.js", "attention_words.js", "attention.js", "page.js"),
        "data": content.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _joined_modules(*names: str) -> str:
    """Return JavaScript modules as a single script, because a self-contained page cannot import files.

    Imports and the keyword ``export`` are removed, so a name must have the same meaning in all modules.
    """
    text = "\n".join(_asset(name) for name in names)
    return re.sub(r"^(import .*;\n|export (?=const|function|class))", "", text, flags=re.MULTILINE)


def _asset(name: str) -> str:
    return (files("headway.inspection") / "assets" / name).read_text(encoding="utf-8")


def _shortened(text: str, max_length: int = 60) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + "…"
