"""HTML and XML entities, such as ``&raquo;`` and ``&#187;``.

As in browsers, some names and all numbers are also recognized without a semicolon, unless a letter, a digit or ``=``
follows. So the parameters in a URL such as ``?a=1&copy=2`` are not changed.
"""

from __future__ import annotations

import re
from html.entities import html5

_WITHOUT_SEMICOLON = "|".join(sorted(name for name in html5 if not name.endswith(";")))
ENTITY_PATTERN = re.compile(
    r"&(?:(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]+);"
    rf"|(?:#[0-9]{{1,7}}|#[xX][0-9A-Fa-f]{{1,6}}|{_WITHOUT_SEMICOLON})(?![A-Za-z0-9=;]))"
)
_XML_NAMES = ("amp;", "lt;", "gt;", "quot;", "apos;")


def is_known_entity(entity: str, *, is_html: bool) -> bool:
    """Return whether an entity that :data:`ENTITY_PATTERN` matches represents a character in HTML or in XML."""
    name = entity[1:]
    if not name.startswith("#"):
        return name in html5 if is_html else name in _XML_NAMES
    digits = name[1:].removesuffix(";")
    number = int("0" + digits, 0) if digits[0] in "xX" else int(digits)
    is_character = (
        number in (9, 10, 13) or (32 <= number < 0x7F) or (0xA0 <= number < 0xD800) or 0xE000 <= number <= 0x10FFFD
    )
    return is_character and (is_html or name.endswith(";"))
