"""Messages in gettext catalogs: plain text that may contain HTML tags and printf directives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.documents.inline_tags import parse_tags, write_tags
from headway.predict.markup.document import BOUNDARY
from headway.predict.markup.icu_messages import find_arguments

_TAG = r"<(?P<closing>/?)(?P<name>[A-Za-z0-9][\w:-]*)(?:\s[^<>]*)?/?>"
_TAGS = re.compile(_TAG)
# A printf directive of C or Python: flags, width, precision, length modifier, conversion.
_TAGS_AND_DIRECTIVES = re.compile(
    _TAG + r"|%(?:\(\w+\)|\d+\$)?[-+ 0#']*+(?:\d++|\*)?(?:\.(?:\d+|\*)?)?(?:hh?|ll?|[jztLq])?[diouxXeEfFgGaAcspn%]"
)
_LINE_BREAK = re.compile(r"(\r\n|\n|\r)")


class Message:
    """A message. Its translation keeps the HTML tags and, with ``has_directives``, the printf directives.

    If a message has tags or directives, each of its lines is translated as a separate text. Line breaks in an ICU
    argument with branches do not end a line.

    Attributes:
        texts: The texts to translate.
    """

    def __init__(self, message: str, *, has_directives: bool) -> None:
        tags = _TAGS_AND_DIRECTIVES if has_directives else _TAGS
        lines = _lines(message, tags) if tags.search(message) else [message]
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


def _lines(message: str, tags: re.Pattern[str]) -> list[str]:
    """Return the lines of a message and the line breaks between them."""
    breaks = list(_LINE_BREAK.finditer(message))
    if not breaks:
        return [message]
    arguments = find_arguments(tags.sub(lambda tag: BOUNDARY * len(tag.group()), message))
    inside = {position for argument in arguments for position in range(argument.start, argument.end)}
    lines: list[str] = []
    position = 0
    for match in breaks:
        if match.start() not in inside:
            lines += (message[position : match.start()], match.group())
            position = match.end()
    return [*lines, message[position:]]
