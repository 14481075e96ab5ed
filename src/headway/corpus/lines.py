"""Convert input lines to sources of translations, and texts to output lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from headway.errors import DataError, HeadwayError

if TYPE_CHECKING:
    from headway.predict import Source


def one_line(text: str) -> str:
    """Return ``text`` as a single line, with line breaks replaced by spaces."""
    return text.replace("\r", " ").replace("\n", " ")


def decode_line(line: bytes) -> str:
    """Decode a line.

    Raises:
        DataError: The line is binary or not UTF-8. The message does not contain the file name and line number.
    """
    from headway.data.readers import decode_lines

    try:
        return decode_lines(line, "corpus", 0)
    except DataError as error:
        raise DataError(str(error).removeprefix("corpus, line 1: ")) from None


class LineReader:
    """Parses lines into sources of translations. A JSON line may add phrases and replace the prefix.

    Args:
        name: Name of the input, for error messages.
        line_format: "text" if each line is a text, "jsonl" if each line is a JSON object.
        prefix: Text that a translation must begin with, unless its line contains another prefix.
        include: Phrases that every translation must contain. ``a|b`` requires at least one of the two.
        banned: Phrases that no translation may contain.
    """

    def __init__(
        self,
        name: str,
        line_format: Literal["text", "jsonl"],
        prefix: str = "",
        include: Sequence[str] = (),
        banned: Sequence[str] = (),
    ) -> None:
        self._name, self._format = name, line_format
        self._prefix, self._banned = prefix, tuple(banned)
        self._include = tuple(tuple(phrase.split("|")) for phrase in include)

    def parse(self, lines: Sequence[bytes | str], first_line_number: int) -> list[Source | HeadwayError]:
        """Return the source in each line, or its error. ``first_line_number`` is the number of the first line."""
        return [self._parse_line(line, number) for number, line in enumerate(lines, start=first_line_number)]

    def source(self, text: str) -> Source:
        """Return a text as a source with the requirements that apply to all translations."""
        from headway.predict.results import Source

        return Source(text, self._prefix, self._include, self._banned)

    def _parse_line(self, line: bytes | str, number: int) -> Source | HeadwayError:
        try:
            text = line if isinstance(line, str) else decode_line(line)
            if self._format == "jsonl":
                return self._record(text, f"{self._name}, line {number}")
            return self.source(text)
        except HeadwayError as error:  # LineReport.add_results adds the line number again
            return type(error)(str(error).removeprefix(f"{self._name}, line {number}: "))

    def _record(self, line: str, where: str) -> Source:
        from headway.predict.results import Source

        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error}); expected an object with the key 'text'") from None
        if not isinstance(data, dict):
            raise DataError(f"expected an object with the key 'text', got {line[:40]!r}")
        record = _record_model().parse(data, where)
        return Source(
            record.text,
            record.prefix or self._prefix,
            (*self._include, *record.include),
            (*self._banned, *record.banned),
        )


@cache
def _record_model() -> Any:
    """Return the schema of a JSON line.

    It is built only once, because building it takes longer than reading hundreds of lines.
    """
    from headway.config import Config

    class Record(Config):
        text: str
        prefix: str = ""
        include: tuple[str | tuple[str, ...], ...] = ()
        banned: tuple[str, ...] = ()

    return Record
