"""The web page at ``/``: static files (HTML, CSS, JavaScript modules) that call the native API from the browser.

The files in ``assets/`` are served unchanged under ``/page/``; there is no build step. The content security policy
allows the page to load and call only its own origin, and allows no inline scripts or styles. Browsers check on each
visit whether a file has changed, so that a new version of Headway is never combined with an old script.

The code that draws attention (``/page/inspection/``) is shared with the page that ``headway inspect`` writes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

import headway.inspection
from headway.diagrams.svg import style_sheet
from headway.serve.apis.keys import KeyLocation
from headway.serve.service import Service

SHARED_INSPECTION_FILES = ("attention.css", "attention.js", "attention_words.js", "basics.js")
_DRAWING_STYLE = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": f"'self' 'sha256-{_DRAWING_STYLE}'",  # allows the style sheet inside drawings of models
    "img-src": "'self' blob:",  # blob: for drawings of models, which the page fetches with a key
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{directive} {sources}" for directive, sources in _POLICY.items()),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
}

KEY_LOCATION = KeyLocation(lambda _: None, public_paths=re.compile(r".*", re.DOTALL))


def routes(_: Service) -> list[Route]:
    """Return the route that serves the page's files, with ``index.html`` for the empty path."""
    files = StaticFiles(directory=Path(__file__).parent / "assets", html=True)
    inspection = StaticFiles(directory=Path(headway.inspection.__file__).parent / "assets")

    async def serve_file(request: Request) -> Response:
        path = os.path.normpath(request.path_params["path"])
        folder, _, name = path.rpartition("/")
        if folder == "inspection" and name in SHARED_INSPECTION_FILES:
            response = await inspection.get_response(name, request.scope)
        else:
            response = await files.get_response(path, request.scope)
        response.headers.update(_HEADERS)
        return response

    return [Route("/{path:path}", serve_file)]
