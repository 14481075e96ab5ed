"""Texts with which a regular expression or a parser whose time is not linear takes long, and the check that it is."""

from __future__ import annotations

import random
import re
import re._parser as sre_parse  # type: ignore[import-not-found]  # the tree of a pattern has no public interface
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_NEGLIGIBLE_S = 0.003  # a quadratic search of 2,500 characters takes longer
_CHARACTERS = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a", "CATEGORY_NOT_SPACE": "a"}


def atoms(pattern: re.Pattern[Any]) -> list[str]:
    """Return the literal strings of a pattern, and a character of each of its classes."""
    source, flags = pattern.pattern, pattern.flags
    if isinstance(source, bytes):
        source = source.decode("latin-1")
    found: list[str] = []

    def walk(tree: Any) -> None:
        literal = ""
        for operation, argument in tree:
            if str(operation) == "LITERAL":
                literal += chr(argument)
                continue
            found.append(literal)
            literal = ""
            match str(operation):
                case "NOT_LITERAL":
                    found.append(chr(argument))
                case "IN":
                    for kind, value in argument:
                        if str(kind) in ("LITERAL", "RANGE"):
                            found.append(chr(value if isinstance(value, int) else value[0]))
                        elif str(kind) == "CATEGORY":
                            found.append(_CHARACTERS.get(str(value), ""))
                case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                    walk(argument[2])
                case "SUBPATTERN":
                    walk(argument[3])
                case "BRANCH":
                    for branch in argument[1]:
                        walk(branch)
                case "ASSERT" | "ASSERT_NOT":
                    walk(argument[1])
                case "ATOMIC_GROUP":
                    walk(argument)
        found.append(literal)

    walk(sre_parse.parse(source, flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else flags))
    return [atom for atom in dict.fromkeys([*found, "a", " ", "\n"]) if atom]


def hostile_texts(parts: Sequence[str], count: int) -> Iterator[Callable[[int], str]]:
    """Yield functions that return a text of about as many characters as they are given.

    Each text is a sequence of units, which are parts or pairs of them, and of which some are repeated.
    """
    draw = random.Random(0)
    for part in parts:
        yield _repeated([(part, True)])
    for _ in range(count):
        units = ["".join(draw.choices(parts, k=draw.randint(1, 2))) for _ in range(draw.randint(1, 4))]
        yield _repeated(
            [(unit, draw.random() < 0.5) for unit in units[:-1]] + [(units[-1], True), (draw.choice(parts), False)]
        )


def _repeated(units: Sequence[tuple[str, bool]]) -> Callable[[int], str]:
    num_repeated = sum(is_repeated for _, is_repeated in units)

    def text(size: int) -> str:
        share = size // num_repeated
        return "".join(unit * (share // len(unit)) if is_repeated else unit for unit, is_repeated in units)

    return text


def assert_linear(
    run: Callable[[T], object],
    argument: Callable[[int], T],
    name: str,
    size: int = 2500,
    negligible_s: float = _NEGLIGIBLE_S,
) -> None:
    """Check that an argument of four times the size takes less than ten times the processor time, if it takes any.

    On a busy machine the processor time of the same work varies, so what seems to fail is measured three times more.
    """
    if (once := _seconds(run, argument(size))) < negligible_s or _seconds(run, argument(4 * size)) < 10 * once:
        return
    once, four_times = (min(_seconds(run, argument(length)) for _ in range(3)) for length in (size, 4 * size))
    assert four_times < 10 * max(once, negligible_s / 4), (
        f"{name}: {once:.4f} s for a size of {size}, {four_times:.4f} s for {4 * size}; {argument(40)!r}"
    )


def _seconds(run: Callable[[T], object], argument: T) -> float:
    began = time.process_time()
    run(argument)
    return time.process_time() - began
