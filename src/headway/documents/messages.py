"""Messages in gettext catalogs: plain text that may contain HTML tags and printf directives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.documents.inline_tags import parse_tags, write_tags

_TAG = r"<(?P<closing>/?)(?P<name>[A-Za-z0-9][\w:-]*)(?:\s[^<>]*)?/?>"
_TAGS = re.compile(_TAG)
# A printf directive of C or Python: flags, width, precision, length modifier, conversion.
_TAGS_AND_DIRECTIVES = re.compile(
    _TAG + r"|%(?:\(\w+\)|\d+\$)?[-+ 0#']*+(?:\d++|\*)?(?:\.(?:\d+|\*)?)?(?:hh?|ll?|[jztLq])?[diouxXeEfFgGaAcspn%]"
)
_LINE_BREAK = re.compile(r"(\r\n|\n|\r)")


class Message:
    """A message. Its translation keeps the HTML tags and, with ``has_directives``, the printf directives.

    If a message has tags or directives, each of its lines is translated as a separate text.

    Attributes:
        texts: The texts to translate.
    """

    def __init__(self, message: str, *, has_directives: bool) -> None:
        tags = _TAGS_AND_DIRECTIVES if has_directives else _TAGS
        lines = _LINE_BREAK.split(message) if tags.search(message) else [message]
        self._lines = [parse_tags(line, tags) for line in lines]
        self.texts = [line.source for line in self._lines if line.has_words]

    def fill(self, translations: Iterator[str]) -> str:
        """Return the translated message. Consumes one item of ``translations`` for each text.

        Raises:
            DocumentError: A translation does not contain each tag exactly once, or its pairs are not nested.
        """
        return "".join(
            write_tags(line, next(translations) if line.has_words else line.source.text) for line in self._lines
        )
