"""Forms of the built-in corpus: ways to write a kind of value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from babel import Locale

WriteFunction = Callable[[Locale, Any], str]


@dataclass(frozen=True)
class ValueForm:
    """A way to write a kind of value, such as "a moment as a long date" or "a number of kilometers, abbreviated".

    The same value written in two languages is a translation pair. A form does not depend on the languages, the number
    of pairs or the split. Its values are drawn with a given random number generator.

    Attributes:
        write: Function that writes a value in a locale.
        draw: Function that draws a random value. None if only ``train_only_values`` are written (a closed set such as
            the weekdays).
        train_only_values: Values that are always in the training set and never held out, because they cannot be
            inferred from other examples: singular and dual, and names that occur in longer phrases.
    """

    write: WriteFunction
    draw: Callable[[Random], Any] | None = None
    train_only_values: tuple[Any, ...] = ()


def babel_writer(function: Callable[..., str], *options: Any, **keywords: Any) -> WriteFunction:
    """Return a function that writes a value with Babel's ``function(value, *options, locale=locale, **keywords)``."""
    return lambda locale, value: function(value, *options, locale=locale, **keywords)
