"""The lines of a job: each is read by itself, and what is wrong with one is told with its number."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headway.errors import DataError, HeadwayError

if TYPE_CHECKING:
    from headway.predict import Source, Translation
    from headway.predict.classifier import Classification

__all__ = ["LineReader", "Report", "in_place"]

Read = TypeVar("Read")
Made = TypeVar("Made")


def in_place(
    lines: Sequence[Read | HeadwayError], make: Callable[[Sequence[Read]], Sequence[Made | HeadwayError]]
) -> list[Made | HeadwayError]:
    """What ``make`` makes of the lines that could be read, each in its place; errors stay where they are."""
    found = iter(make([line for line in lines if not isinstance(line, HeadwayError)]))
    return [line if isinstance(line, HeadwayError) else next(found) for line in lines]


class LineReader:
    """Lines as sources; ``prefix``, ``include`` and ``banned`` hold for all of them, beside what a line says."""

    def __init__(
        self,
        place: str,
        form: Literal["text", "jsonl"],
        prefix: str = "",
        include: Sequence[str] = (),
        banned: Sequence[str] = (),
    ) -> None:
        self._place, self._form = place, form
        self._prefix, self._banned = prefix, tuple(banned)
        self._include = tuple(tuple(phrase.split("|")) for phrase in include)

    def sources(self, lines: Sequence[bytes], first: int) -> list[Source | HeadwayError]:
        """A source of each line, or what is wrong with it; ``first`` is the number of the first."""
        return [self._source(line, number) for number, line in enumerate(lines, start=first)]

    def _source(self, line: bytes, number: int) -> Source | HeadwayError:
        from headway.data.readers import decode_lines
        from headway.predict import Source

        try:
            text = decode_lines(line, self._place, number - 1)
            if self._form == "jsonl":
                return self._record(text, f"{self._place}, line {number}")
            return Source(text, self._prefix, self._include, self._banned)
        except HeadwayError as error:  # the place is put back where it is told
            return type(error)(str(error).removeprefix(f"{self._place}, line {number}: "))

    def _record(self, line: str, where: str) -> Source:
        from headway.predict import Source

        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error}); expected an object with a text") from None
        if not isinstance(data, dict):
            raise DataError(f"expected an object with a text, got {line[:40]!r}")
        record = _record_model().parse(data, where)
        return Source(
            record.text,
            record.prefix or self._prefix,
            (*self._include, *record.include),
            (*self._banned, *record.banned),
        )


@cache
def _record_model() -> Any:
    """The model of a line of JSON; to make one takes longer than to read hundreds of lines."""
    from headway.config import Config

    class Record(Config):
        text: str
        prefix: str = ""
        include: tuple[str | tuple[str, ...], ...] = ()
        banned: tuple[str, ...] = ()

    return Record


class Report:
    """Counts lines, and tells on standard error which failed and what is suspicious.

    Args:
        place: What the input is called.
        on_error: "stop": the first line that fails raises its error; "mark": it is told, and counted.
        details: What tells for each line whether it is suspicious.
    """

    def __init__(self, place: str, on_error: Literal["stop", "mark"], *, details: str = "--format json") -> None:
        self.lines = 0
        self._place, self._on_error, self._details = place, on_error, details
        self._failed = 0
        self._flags: Counter[str] = Counter()

    def add(self, found: Sequence[Translation | Classification | HeadwayError]) -> None:
        """Take note of the next lines."""
        for number, each in enumerate(found, start=self.lines + 1):
            if isinstance(each, HeadwayError):
                error = each.at(f"{self._place}, line {number}")
                if self._on_error == "stop":
                    raise error
                self._say(str(error))
                self._failed += 1
            else:
                self._flags.update(_suspicions(each))
        self.lines += len(found)

    def finish(self) -> None:
        """Tell the sums, where there is something to tell."""
        if self._failed:
            self._say(f"{self._failed:,} of {self.lines:,} lines failed and are empty in the output")
        if self._flags:
            counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self._flags.most_common())
            self._say(f"lines to look at ({self._details} tells which): {counts}")

    def _say(self, message: str) -> None:
        print(f"headway: {message}", file=sys.stderr)


def _suspicions(found: Translation | Classification) -> list[str]:
    from headway.predict import Translation

    if not isinstance(found, Translation):
        return ["truncated"] * found.truncated
    best = found.candidates[0]
    return [*best.flags, *["include not met"] * bool(best.unmet), *["banned phrase"] * bool(best.banned)]
