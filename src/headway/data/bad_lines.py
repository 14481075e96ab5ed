"""Handle invalid lines in a corpus: reject the corpus with a list of these lines, or skip and count them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from headway.errors import DataError

OnError = Literal["refuse", "skip"]
SKIP_HINT = "or skip such lines with data.on_error = 'skip'"  # for errors about corpora in a recipe

T = TypeVar("T")

_LISTED = 20  # maximum number of problems in an error message


@dataclass(frozen=True)
class LineProblem:
    """A line that does not contain a valid example.

    Attributes:
        where: File and line number.
        fault: Description of the problem.
        advice: What is expected, and how to fix the line.
        is_fatal: Whether the problem affects a whole file, which cannot be skipped.
    """

    where: str
    fault: str
    advice: str
    is_fatal: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.fault}; {self.advice}"


class BadLines:
    """Handles the invalid lines in one pass over a corpus.

    Attributes:
        count: Number of invalid lines so far.

    Args:
        on_error: "refuse": read to the end, then raise an error that lists the first invalid lines and reports the
            number of all. "skip": skip the examples of these lines.
        hint: Hint for the error message: an alternative to correcting the files.
    """

    def __init__(self, on_error: OnError = "refuse", hint: str = "") -> None:
        self.count = 0
        self._skips, self._hint = on_error == "skip", hint
        self._first: list[LineProblem] = []

    def valid_items(self, items: Iterable[T | LineProblem]) -> Iterator[T]:
        """Yield the items of a whole corpus that are not problems (see :meth:`drop_problems`).

        Raises:
            DataError: There are problems, and ``on_error`` is "refuse".
        """
        yield from self.drop_problems(items)
        self.raise_if_failed()

    def drop_problems(self, items: Iterable[T | LineProblem]) -> Iterator[T]:
        """Yield the items that are not problems. After the first problem, yield further items only if problems are
        skipped.
        """
        for item in items:
            if isinstance(item, LineProblem):
                if item.is_fatal and self._skips:
                    raise DataError(str(item))
                self.count += 1
                if len(self._first) < _LISTED:
                    self._first.append(item)
            elif not self.has_failed:
                yield item

    @property
    def has_failed(self) -> bool:
        """Whether there are problems, and ``on_error`` is "refuse"."""
        return self.count > 0 and not self._skips

    def raise_if_failed(self) -> None:
        """Raise :class:`DataError` if there are problems and ``on_error`` is "refuse"."""
        if self.has_failed:
            raise DataError(self._message())

    def _message(self) -> str:
        hint = f"; {self._hint}" if self._hint else ""
        if self.count == 1:
            return f"{self._first[0]}{hint}"
        rest = self.count - len(self._first)
        listed = [f"{problem.where}: {problem.fault}" for problem in self._first]
        listed += [f"and {rest:,} more"] if rest else []
        advice = "; ".join(dict.fromkeys(problem.advice for problem in self._first))
        return f"{self.count:,} lines cannot be read: {'; '.join(listed)}. {advice[:1].upper()}{advice[1:]}{hint}"
