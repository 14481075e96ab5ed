"""Lines with fields: JSON objects, and columns separated by tabs. All fields are kept, and a result is added.

A field in a JSON object may also be a list of texts, such as the sentences of a document. Its result is then a list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.config import spelling_hint
from headway.corpus.lines import decode_line, one_line
from headway.data.readers import uncompressed_name
from headway.errors import ConfigError, DataError

RecordKind = Literal["jsonl", "tsv"]
_KINDS: dict[str, RecordKind] = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".tsv": "tsv"}


@dataclass(frozen=True)
class CorpusRecord:
    """A line with fields.

    Attributes:
        texts: The texts of the record. Each has a value for each of the requested fields.
        is_list: Whether the field is a list of texts.
        format_with_result: Returns the output line with a given result, which is None if the record failed.
    """

    texts: tuple[tuple[str, ...], ...]
    is_list: bool
    format_with_result: Callable[[Any], str]


@dataclass(frozen=True)
class RecordFormat:
    """Reads and writes lines with fields.

    Attributes:
        kind: "jsonl" or "tsv".
        fields: The fields to read: names, or column numbers counted from 1.
        result_field: Name of the field for the result. In TSV files, the result is a new last column instead.
    """

    kind: RecordKind
    fields: tuple[str, ...]
    result_field: str

    def parse(self, line: bytes) -> CorpusRecord:
        """Parse a line.

        Raises:
            DataError: The line is not valid, or lacks a field.
        """
        text = decode_line(line)
        return self._parse_object(text) if self.kind == "jsonl" else self._parse_columns(text)

    def _parse_object(self, line: str) -> CorpusRecord:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error}); expected an object") from None
        if not isinstance(data, dict):
            raise DataError(f"expected a JSON object, got {line[:40]!r}")
        values = []
        for name in self.fields:
            if name not in data:
                raise DataError(f"field {name!r} is missing; {spelling_hint(name, data)}")
            values.append(data[name])
        is_list = len(values) == 1 and isinstance(values[0], list)
        texts = [(text,) for text in values[0]] if is_list else [tuple(values)]
        if not all(isinstance(text, str) for of_text in texts for text in of_text):
            shown = json.dumps(values[0] if is_list else values)[:60]
            raise DataError(f"field {', '.join(self.fields)} is {shown}; expected a string or a list of strings")
        return CorpusRecord(tuple(texts), is_list, lambda result: _json_line({**data, self.result_field: result}))

    def _parse_columns(self, line: str) -> CorpusRecord:
        columns = line.split("\t")
        needed = max(map(int, self.fields))
        if len(columns) < needed:
            raise DataError(f"{len(columns)} columns, but {needed} needed; columns are separated by one tab")
        texts = tuple(columns[int(name) - 1] for name in self.fields)
        return CorpusRecord((texts,), False, lambda result: f"{line}\t{_cell(result)}\n")

    def failed_line(self) -> str:
        """Return the output line for an input line that is not a valid record."""
        return "null\n" if self.kind == "jsonl" else "\n"


def record_format(paths: Sequence[Path], field: str | None, result: str, *, num_fields: int = 1) -> RecordFormat | None:
    """Return the format of the records in input files, or None if each line is a text.

    Args:
        paths: The input files.
        field: The value of --field: the names of the fields to read, separated by commas.
        result: The name of the field for the result.
        num_fields: The number of fields that the operation reads.

    Raises:
        ConfigError: Fields must be named for these files, or cannot be.
    """
    fields = field.split(",") if field else []
    for path in paths:
        if uncompressed_name(path).suffix == ".tmx":
            raise ConfigError(
                f"{path}: a translation memory has no lines; expected text, .jsonl or .tsv (which may be compressed). "
                "headway train, prepare and corpus clean read translation memories"
            )
    kinds = {_KINDS.get(uncompressed_name(path).suffix) for path in paths}
    if kinds == {None} or not kinds:
        if fields:
            raise ConfigError("--field applies only to .jsonl and .tsv files (which may be compressed); omit it")
        return None
    if len(kinds) > 1:
        raise ConfigError("the input files have different formats; create one job per format")
    (kind,) = kinds
    assert kind is not None
    if len(fields) != num_fields:
        example = "--field text" if kind == "jsonl" else "--field 1"
        raise ConfigError(
            f"{paths[0]}: lines have fields; name "
            + (
                f"one with --field, such as {example}"
                if num_fields == 1
                else f"{num_fields} with --field, separated by ,"
            )
        )
    if kind == "tsv" and not all(name.isascii() and name.isdecimal() and int(name) > 0 for name in fields):
        raise ConfigError(f"--field {','.join(fields)}: columns of .tsv files are numbers, counted from 1")
    return RecordFormat(kind, tuple(fields), result)


def _json_line(data: dict[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which only an escape can represent
        text = json.dumps(data)
    return text + "\n"


def _cell(result: Any) -> str:
    if result is None:
        return ""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return one_line(text).replace("\t", " ")
