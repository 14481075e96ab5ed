"""Read the JSON files of models from other toolkits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.errors import BundleError

_MAX_DEPTH = 100  # maximum nesting depth of JSON


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or return None if the file does not exist."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); copy it again from its source") from None
    if not isinstance(content, dict):
        raise BundleError(f"{path}: damaged (expected a JSON object); copy it again from its source")
    if _is_deep(content):
        raise BundleError(f"{path}: more than {_MAX_DEPTH} nested levels; copy it again from its source")
    return content


def _is_deep(content: dict[str, Any]) -> bool:
    """Return whether JSON is nested so deeply that recursive functions would fail."""
    level: list[dict[str, Any] | list[Any]] = [content]
    for _ in range(_MAX_DEPTH):
        children = (child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent))
        level = [child for child in children if isinstance(child, (dict, list))]
    return bool(level)
