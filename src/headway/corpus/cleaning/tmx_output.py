"""Write pairs as a translation memory (TMX 1.4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # in XML 1.0
TMX_END = b"</body></tmx>\n"


def tmx_start(languages: Sequence[str]) -> bytes:
    """Return the beginning of the file, up to the first translation unit."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header creationtool="Headway" '
        'creationtoolversion="1" segtype="sentence" o-tmf="none" adminlang="en" datatype="plaintext" '
        f"srclang={quoteattr(languages[0])}/><body>\n"
    ).encode()


def tmx_unit(texts: Sequence[str], languages: Sequence[str]) -> bytes:
    """Return a translation unit (``tu`` element) with the texts in all languages."""
    variants = (
        f"<tuv xml:lang={quoteattr(language)}><seg>{escape(_ILLEGAL.sub(' ', text))}</seg></tuv>"
        for text, language in zip(texts, languages, strict=True)
    )
    return f"<tu>{''.join(variants)}</tu>\n".encode()
