"""Message catalogs of GNU gettext (PO), read and written by the translate-toolkit.

Messages without a translation are translated, with all plural forms. Existing translations, comments, flags, contexts,
obsolete messages and the order stay as they are. Messages keep their HTML tags. Messages with a flag such as
``c-format`` also keep their printf directives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.documents.content import DocumentContent, DocumentError, DocumentLimits, read_text
from headway.documents.messages import Message
from headway.errors import MissingPackageError
from headway.predict.markup.placeholders import has_words

_MAX_PLURALS = 6
_PRINTF = ("c-format", "objc-format", "php-format", "python-format")  # flags of messages with printf directives
_NUM_PLURALS = re.compile(r"nplurals\s*=\s*(\d+)")


def read_po(path: Path, _: DocumentLimits) -> DocumentContent:
    """Read a catalog in UTF-8.

    Raises:
        DocumentError: The catalog is not valid.
        MissingPackageError: The translate-toolkit is not installed.
    """
    try:
        from translate.misc.multistring import multistring
        from translate.storage.pypo import pofile
    except ImportError:
        raise MissingPackageError("translating PO files", "translate-toolkit") from None
    encoded = read_text(path)
    if "msgid" not in encoded.text:
        raise DocumentError("the file is not a PO file, because it has no msgid")
    try:
        catalog = pofile.parsestring(encoded.text.encode(encoded.encoding))
    except Exception as error:  # the parser passes on any exception of its helpers
        reason = " ".join(str(error).split())
        raise DocumentError(f"the file is not a valid PO file ({reason})") from None
    units: list[Any] = [
        unit
        for unit in catalog.units
        if not (
            unit.isheader() or unit.isobsolete() or unit.isblank() or unit.target or not has_words(str(unit.source))
        )
    ]
    messages = [
        [
            Message(str(form), has_directives=any(map(unit.hastypecomment, _PRINTF)))
            for form in (unit.source.strings if unit.hasplural() else [unit.source])
        ]
        for unit in units
    ]
    match = _NUM_PLURALS.search(str(catalog.header().target) if catalog.header() else "")
    num_plurals = min(int(match[1]), _MAX_PLURALS) if match else 2

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        for unit, unit_messages in zip(units, messages, strict=True):
            forms = [message.fill(remaining) for message in unit_messages]
            # If there are several forms, the first one is the singular.
            plural = [forms[-1]] * max(1, num_plurals - 1)
            unit.target = multistring([*forms[: num_plurals > 1], *plural]) if unit.hasplural() else forms[0]
        try:
            target.write_bytes(encoded.byte_order_mark + bytes(catalog))
        except UnicodeEncodeError as error:
            character = error.object[error.start]
            raise DocumentError(
                f"the header declares the charset {error.encoding}, which lacks the character {character!r} of the "
                "translation",
                hint="convert the file to UTF-8",
            ) from None

    return DocumentContent(
        [text for unit_messages in messages for message in unit_messages for text in message.texts], write
    )
