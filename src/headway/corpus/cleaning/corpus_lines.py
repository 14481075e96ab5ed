"""Convert the lines of a corpus to texts, and texts to lines of the same format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.data.readers import decode_lines, uncompressed_name
from headway.errors import ConfigError, DataError

LineFormat = Literal["text", "tsv", "jsonl"]
CorpusKind = Literal["pairs", "texts", "labels"]
FORMAT_BY_SUFFIX: dict[str, LineFormat] = {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}
DEFAULT_FIELDS: dict[CorpusKind, tuple[str, ...]] = {
    "pairs": ("source", "target"),
    "texts": ("text",),
    "labels": ("label", "text"),
}


@dataclass(frozen=True)
class CorpusLine:
    """The texts in a line, in the order source and target, text, or text and label.

    Attributes:
        texts: The decoded texts. Bytes that are not valid text are replaced, so that the line can be displayed.
        fault: The reason why the line is invalid, or None.
    """

    texts: tuple[str, ...]
    fault: str | None = None


def line_format(path: Path) -> LineFormat:
    """Return the format of a file, determined by its name."""
    return FORMAT_BY_SUFFIX.get(uncompressed_name(path).suffix, "text")


@dataclass(frozen=True)
class LineParser:
    """Parses and writes lines in one format.

    Attributes:
        format: The format of the lines. In the format "text", each side of a pair has its own file.
        kind: The content of a line: a pair, a text, or a labeled text.
        fields: The field names in JSON, or the column numbers in TSV, counted from 1.
    """

    format: LineFormat
    kind: CorpusKind
    fields: tuple[str, ...]

    @classmethod
    def of(cls, form: LineFormat, kind: CorpusKind, fields: Sequence[str] | None) -> LineParser:
        """Return a parser for the given fields, or for the default fields if they are not given.

        Raises:
            ConfigError: There are too few or too many fields, or they are not column numbers.
        """
        needed = DEFAULT_FIELDS[kind]
        usual = needed if form == "jsonl" else tuple(map(str, range(1, len(needed) + 1)))
        if fields and form != "text":
            if len(set(fields)) != len(needed):
                raise ConfigError(f"--fields {','.join(fields)}: expected {len(needed)}: {' and '.join(needed)}")
            if form == "tsv" and not all(name.isascii() and name.isdecimal() and int(name) > 0 for name in fields):
                raise ConfigError(f"--fields {','.join(fields)}: columns of .tsv files are numbers, counted from 1")
        return cls(form, kind, tuple(fields) if fields and form != "text" else usual)

    def parse(self, line: Sequence[bytes]) -> CorpusLine:
        """Return the texts in a line. ``line`` contains the bytes of the line in each file."""
        try:
            texts = tuple([decode_lines(part, "", 0) for part in line])
        except DataError as error:
            shown = [part.decode("utf-8", errors="replace").replace("\0", "\ufffd") for part in line]
            empty = [""] * (len(self.fields) - len(shown))
            return CorpusLine((*shown, *empty), str(error).removeprefix(", line 1: "))
        if self.format == "text":
            return CorpusLine(texts)
        parsed = self._columns(texts[0]) if self.format == "tsv" else self._values(texts[0])
        return CorpusLine(parsed.texts[::-1], parsed.fault) if self.kind == "labels" else parsed

    def _columns(self, line: str) -> CorpusLine:
        columns, numbers = line.split("\t"), [int(name) for name in self.fields]
        if len(columns) < max(numbers):
            return self._faulty(line, f"{len(columns)} columns, but {max(numbers)} needed")
        return CorpusLine(tuple([columns[number - 1] for number in numbers]))

    def _values(self, line: str) -> CorpusLine:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self._faulty(line, f"not valid JSON ({error})")
        if not isinstance(record, dict):
            return self._faulty(line, "not a JSON object")
        for name in self.fields:
            if name not in record:
                return self._faulty(line, f"field {name!r} is missing")
            value = record[name]
            if not isinstance(value, str) and type(value) is not int:  # labels are often numbers
                return self._faulty(line, f"field {name!r} is not a string")
        texts = tuple([str(record[name]) for name in self.fields])
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            return self._faulty(line, "a \\u escape is half of a surrogate pair")
        return CorpusLine(texts)

    def _faulty(self, line: str, fault: str) -> CorpusLine:
        return CorpusLine((line, *[""] * (len(self.fields) - 1)), fault)

    def replace_texts(self, line: bytes, texts: Sequence[str]) -> bytes:
        """Return a TSV or JSON line with new texts in its fields. Other fields are unchanged."""
        values = texts[::-1] if self.kind == "labels" else texts
        if self.format == "tsv":
            columns = line.decode("utf-8").split("\t")
            for name, value in zip(self.fields, values, strict=True):
                columns[int(name) - 1] = _one_cell(value)
            return "\t".join(columns).encode()
        record = json.loads(line)
        if [str(record[name]) for name in self.fields] == list(values):
            return line
        record.update(
            {name: value for name, value in zip(self.fields, values, strict=True) if str(record[name]) != value}
        )
        return json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _one_cell(text: str) -> str:
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")
