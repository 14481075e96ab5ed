"""Apply an operation on texts to lines, so that a job can run it."""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, TypeVar

from headway.corpus.records import CorpusRecord, RecordFormat
from headway.errors import HeadwayError
from headway.jobs.line_map import ConvertedBatch, ConvertedLine, Line

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class TextOperation(ABC, Generic[ItemT, ResultT]):
    """An operation on texts that is ready to run.

    Attributes:
        num_texts: Number of texts in an item: 2 for pairs.
        processor: Properties besides the options that results depend on, such as the precision.
    """

    num_texts = 1
    processor: dict[str, Any]

    @abstractmethod
    def parse(self, lines: Sequence[Line], first_line: int) -> list[ItemT | HeadwayError]:
        """Return the item in each line, or its error. The lines have no fields."""

    @abstractmethod
    def make_item(self, texts: tuple[str, ...]) -> ItemT:
        """Return an item made of these texts."""

    @abstractmethod
    def run(self, items: Sequence[ItemT]) -> Sequence[ResultT | HeadwayError]:
        """Return the result of each item, or its error."""

    @abstractmethod
    def format_line(self, number: int, item: ItemT | HeadwayError, result: ResultT | HeadwayError) -> str:
        """Return the output for a line without fields, including line ends."""

    @abstractmethod
    def json_value(self, item: ItemT, result: ResultT) -> Any:
        """Return a result as a JSON value, for a field of a record."""

    def counter_keys(self, result: ResultT) -> Iterable[str]:
        """Return the keys under which a result is counted."""
        return ()


class TextLineMap(Generic[ItemT, ResultT]):
    """Applies an operation on texts to the lines of a corpus.

    Args:
        operation: The operation on texts.
        records: The format of lines with fields. None means that each line is a text.
        on_error: "stop" raises the error of a line that fails; "mark" returns it.

    Attributes:
        processor: Properties of the machine and the model that results depend on, besides the job's options.
    """

    def __init__(
        self,
        operation: TextOperation[ItemT, ResultT],
        records: RecordFormat | None,
        on_error: Literal["stop", "mark"] = "mark",
    ) -> None:
        self._operation, self._records, self._on_error = operation, records, on_error
        self.processor = {"features": _features(), **operation.processor}
        if operation.processor["precision"] != "int8":  # sums of int8 products are exact in any order
            self.processor["threads"] = os.environ.get("OMP_NUM_THREADS", "all")

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the output for each line."""
        if self._records is None:
            return self._convert_texts(lines, first_line, location)
        return self._convert_records(self._records, lines, first_line, location)

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Return the output for a line that cannot be converted."""
        if self._on_error == "stop":
            raise HeadwayError(reason, where=f"{location}, line {number}")
        if self._records is None:
            error = HeadwayError(reason)
            return ConvertedLine(self._operation.format_line(number, error, error), reason)
        try:
            return ConvertedLine(self._records.parse(line[0]).format_with_result(None), reason)
        except HeadwayError:
            return ConvertedLine(self._records.failed_line(), reason)

    def _convert_texts(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        operation, batch = self._operation, ConvertedBatch([])
        items = operation.parse(lines, first_line)
        results = iter(operation.run([item for item in items if not isinstance(item, HeadwayError)]))
        for number, item in enumerate(items, start=first_line):
            result = item if isinstance(item, HeadwayError) else next(results)
            failure = None
            if isinstance(result, HeadwayError):
                failure = self._failure(result, number, location)
            else:
                batch.counts.update(operation.counter_keys(result))
            batch.lines.append(ConvertedLine(operation.format_line(number, item, result), failure))
        return batch

    def _convert_records(
        self, records: RecordFormat, lines: Sequence[Line], first_line: int, location: str
    ) -> ConvertedBatch:
        operation, batch = self._operation, ConvertedBatch([])
        parsed = [_parse(records, line[0]) for line in lines]
        items = [
            operation.make_item(texts)
            for record in parsed
            if isinstance(record, CorpusRecord)
            for texts in record.texts
        ]
        outcomes = iter(zip(items, operation.run(items), strict=True))
        for number, record in enumerate(parsed, start=first_line):
            if isinstance(record, HeadwayError):
                failure = self._failure(record, number, location)
                batch.lines.append(ConvertedLine(records.failed_line(), failure))
                continue
            values, error = list[Any](), None
            for _ in record.texts:
                item, result = next(outcomes)
                if isinstance(result, HeadwayError):
                    error = error or self._failure(result, number, location)
                    values.append(None)
                else:
                    batch.counts.update(operation.counter_keys(result))
                    values.append(operation.json_value(item, result))
            output = record.format_with_result(values if record.is_list else values[0])
            batch.lines.append(ConvertedLine(output, error))
        return batch

    def _failure(self, error: HeadwayError, number: int, location: str) -> str:
        if self._on_error == "stop":
            raise error.with_location(f"{location}, line {number}")
        return str(error)


def _parse(records: RecordFormat, line: bytes) -> CorpusRecord | HeadwayError:
    try:
        return records.parse(line)
    except HeadwayError as error:
        return error


def counts_with_prefix(counts: Counter[str], prefix: str) -> Counter[str]:
    """Return the counts whose names begin with ``prefix``, which is removed from the names."""
    return Counter({name[len(prefix) :]: count for name, count in counts.items() if name.startswith(prefix)})


def _features() -> list[str]:
    """Return the processor's architecture and the features that kernels use."""
    features = [platform.machine()]
    with suppress(ImportError):
        from headway.kernels.processor import cpu_features

        features += sorted(cpu_features())
    return features
