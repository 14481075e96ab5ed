"""Program messages: plain text that may contain HTML tags, printf directives, other messages and plural forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Literal

from headway.documents.inline_tags import TAG_END_PATTERN, TAG_START_PATTERN, parse_tags, write_tags
from headway.predict.markup.document import TAG_CHARACTER
from headway.predict.markup.entities import ENTITY_PATTERN
from headway.predict.markup.icu_messages import find_branching_arguments

CONTROL_CHARACTER = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Pattern of a control character that is not white space."""
# Tags, ANSI escape sequences for colors, and other control characters.
_TAG = rf"{TAG_START_PATTERN}{TAG_END_PATTERN}|\x1b\[[\d;]*[A-Za-z]|{CONTROL_CHARACTER}"
_TAGS = re.compile(_TAG)
# A C or Python printf directive: flags, width, precision, length modifier, conversion.
_TAGS_AND_DIRECTIVES = re.compile(
    _TAG + r"|%(?:\(\w+\)|\d+\$)?[-+ 0#']*+(?:\d++|\*)?(?:\.(?:\d+|\*)?)?(?:hh?|ll?|[jztLq])?[diouxXeEfFgGaAcspn%]"
)
# References to other messages: vue-i18n's linked messages, and i18next's nested messages.
_MESSAGES = r"|(?P<word>@(?:\.\w+)?:(?:\([\w.-]+\)|[\w-]+(?:\.[\w-]+)*)|\$t\((?:[^()]|\([^()]*\))*+\))"
_TAGS_AND_MESSAGES = re.compile(_TAG + _MESSAGES)
_LINE_BREAK = r"\r\n|\n|\r"
_SEPARATORS = {
    "gettext": re.compile(_LINE_BREAK),
    "c-format": re.compile(_LINE_BREAK),
    "json": re.compile(rf"{_LINE_BREAK}|(?<![ \t])[ \t]++\|[ \t]++"),
    "vue-i18n": re.compile(rf"{_LINE_BREAK}|(?<![ \t])[ \t]*+\|[ \t]*+"),
}

MessageSyntax = Literal["gettext", "c-format", "json", "vue-i18n"]


class Message:
    """A message. Its translation keeps HTML tags, control characters and, in some syntaxes, the items listed below.

    If a message has tags or directives, each of its lines is translated as a separate text. Line breaks in an ICU
    argument with branches do not end a line. Characters that are HTML entities in the message are also written as
    entities in the translation.

    ==========  ====================================================================================================
    gettext     nothing else
    c-format    printf directives
    json        the separators `` | `` between plural forms or titles, and nested messages such as ``$t(key)``
    vue-i18n    the separators ``|`` with and without spaces, and linked messages such as ``@:key``
    ==========  ====================================================================================================

    Attributes:
        texts: The texts to translate.
    """

    def __init__(self, message: str, syntax: MessageSyntax) -> None:
        tags = _TAGS_AND_DIRECTIVES if syntax == "c-format" else _TAGS if syntax == "gettext" else _TAGS_AND_MESSAGES
        separators = _SEPARATORS[syntax]
        has_parts = tags.search(message) or (syntax in ("json", "vue-i18n") and "|" in message)
        lines = _lines(message, tags, separators) if has_parts else [message]
        self._entities = {
            character: entity
            for entity in ENTITY_PATTERN.findall(message)
            if len(character := unescape(entity)) == 1 and character != entity
        }
        self._lines = [parse_tags(line, tags, self._read) for line in lines]
        self.texts = [line.source for line in self._lines if line.is_translatable]

    def fill(self, translations: Iterator[str]) -> str:
        """Return the translated message. One item of ``translations`` is consumed for each text.

        Raises:
            DocumentError: A translation does not contain each tag exactly once, or its pairs are not nested.
        """
        return "".join(
            write_tags(line, next(translations) if line.is_translatable else line.source.text, self._write)
            for line in self._lines
        )

    def _read(self, text: str) -> str:
        return ENTITY_PATTERN.sub(lambda match: unescape(match.group()), text)

    def _write(self, text: str) -> str:
        return "".join(self._entities.get(character, character) for character in text) if self._entities else text


def _lines(message: str, tags: re.Pattern[str], separators: re.Pattern[str]) -> list[str]:
    """Return the lines of a message and the separators between them."""
    breaks = list(separators.finditer(message))
    if not breaks:
        return [message]
    arguments = find_branching_arguments(tags.sub(lambda tag: TAG_CHARACTER * len(tag.group()), message))
    inside = {position for argument in arguments for position in range(argument.start, argument.end)}
    lines: list[str] = []
    position = 0
    for match in breaks:
        if match.start() not in inside:
            lines += (message[position : match.start()], match.group())
            position = match.end()
    return [*lines, message[position:]]
