"""The unit of the built-in corpus: one way to write one kind of value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from babel import Locale

WriteFunction = Callable[[Locale, Any], str]


@dataclass(frozen=True)
class ValueForm:
    """One way to write one kind of value, such as "a moment as a long date" or "a number of kilometers, abbreviated".

    The same value written in two languages is a pair of translations. A form does not depend on the languages, the
    number of pairs or the split. All its values are drawn from a given random generator.

    Attributes:
        write: Write a value in a locale.
        draw: Draw a value. None if only ``train_only_values`` are written (a closed set such as the weekdays).
        train_only_values: Values that are always in the training set and never held out, because no other example
            implies them: singular and dual, and the names that longer phrases contain.
    """

    write: WriteFunction
    draw: Callable[[Random], Any] | None = None
    train_only_values: tuple[Any, ...] = ()


def babel_writer(function: Callable[..., str], *options: Any, **keywords: Any) -> WriteFunction:
    """Return a function that writes a value by ``function(value, *options, locale=locale, **keywords)`` of Babel."""
    return lambda locale, value: function(value, *options, locale=locale, **keywords)
