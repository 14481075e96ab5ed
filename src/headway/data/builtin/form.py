"""What the built-in corpus is made of: one way to write one kind of value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from babel import Locale

__all__ = ["Form"]


@dataclass(frozen=True)
class Form:
    """One way to write one kind of value, such as "a moment as a long date" or "a number of kilometers, abbreviated".

    Written in two languages the same value gives a translation. A form knows neither which two are asked for, nor how
    many pairs, nor how they are split; all its values come from the random generator that is handed in.

    Attributes:
        write: how a locale writes a value.
        draw: draws a value; None where only the anchors are written (a closed set such as the weekdays).
        anchors: values that are always trained on and never held out, because no other example implies them: singular
            and dual, and the names that the longer phrases are built of.
    """

    write: Callable[[Locale, Any], str]
    draw: Callable[[Random], Any] | None = None
    anchors: tuple[Any, ...] = ()
