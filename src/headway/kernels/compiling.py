"""How functions are compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numba

__all__ = ["compiled", "compiled_for_threads"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# Sums may be taken in any order and products be fused with sums, or no loop would use vectors. NaN and infinities keep
# their meaning: damaged weights must be seen.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}


# Only loops over `numba.prange` are shared by threads; to start them for an array's copy would cost more than the copy.
_SHARED = {"prange": True} | dict.fromkeys(
    ("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil"), False
)


def compiled(function: FunctionT) -> FunctionT:
    """``function`` compiled for the types that it is called with, at the first call with them."""
    return _compiled(function, {})


def compiled_for_threads(function: FunctionT) -> FunctionT:
    """The same, with its loops over ``numba.prange`` shared by the threads that Numba may use."""
    function = cast(FunctionT, inspect.unwrap(function))
    again = FunctionType(function.__code__, function.__globals__, function.__name__)
    again.__qualname__ = function.__qualname__ + "_for_threads"  # by which Numba's cache tells one from the other
    return _compiled(cast(FunctionT, again), {"parallel": _SHARED})


def _compiled(function: FunctionT, options: dict[str, Any]) -> FunctionT:
    function = cast(FunctionT, inspect.unwrap(function))  # of the type checks that tests wrap around every function
    try:
        return cast(FunctionT, numba.njit(cache=True, **_OPTIONS, **options)(function))
    except RuntimeError:  # there is no folder for a cache that may be written
        return cast(FunctionT, numba.njit(**_OPTIONS, **options)(function))
