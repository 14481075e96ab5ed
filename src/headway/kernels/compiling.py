"""How functions are compiled."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar, cast

import numba

from headway.kernels.cpu_features import cpu_features

__all__ = ["compiled", "compiled_for_threads", "compiled_twice", "within"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# Sums may be taken in any order and products be fused with sums, or no loop would use vectors. NaN and infinities keep
# their meaning: damaged weights must be seen.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}


# Only loops over `numba.prange` are shared by threads; to start them for an array's copy would cost more than the copy.
_ONLY_PRANGE = {"prange": True} | dict.fromkeys(
    ("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil"), False
)

# Compiled code contains the functions that it calls and depends on the processor features that were chosen, but Numba's
# cache checks only the source file of the outermost function. So each function's cached name contains this hash.
_SOURCES = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
_FEATURES = ",".join(sorted(cpu_features())).encode()
_VERSION = hashlib.blake2b(b"".join([*_SOURCES, _FEATURES]), digest_size=4).hexdigest()


def compiled(function: FunctionT) -> FunctionT:
    """``function`` compiled for the types that it is called with, at the first call with them."""
    return _compiled(function, _VERSION, {})


def within(function: FunctionT) -> FunctionT:
    """The same as a part of what calls it: for inner loops, where handing over arrays takes as long as the work."""
    return _compiled(function, _VERSION, {"forceinline": True})


def compiled_for_threads(function: FunctionT) -> FunctionT:
    """The same, with its loops over ``numba.prange`` shared by the threads that Numba may use."""
    return _compiled(function, f"{_VERSION}_for_threads", {"parallel": _ONLY_PRANGE})


def compiled_twice(function: FunctionT) -> tuple[FunctionT, FunctionT]:
    """:func:`compiled_for_threads` and :func:`compiled`, which come to the same bits, now and in any later process.

    Neither reorders sums nor fuses them with products, which compilers do in one form of a loop and not in another, and
    in a process that compiles for threads otherwise than in one that finds the code in the cache. Loops that sum up a
    row take :mod:`headway.kernels.row_sums`; other compiled functions that they call compute nothing in floats but
    what :mod:`headway.kernels.emitting` wrote out.
    """
    exact = {"fastmath": {"nsz"}}
    shared = _compiled(function, f"{_VERSION}_for_threads", {"parallel": _ONLY_PRANGE} | exact)
    return shared, _compiled(function, _VERSION, exact)


def _compiled(function: FunctionT, version: str, options: dict[str, Any]) -> FunctionT:
    """A copy of the function, whose qualified name holds ``version``: by that Numba's cache tells functions apart."""
    function = cast(FunctionT, inspect.unwrap(function))  # of the type checks that tests wrap around every function
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__qualname__ = f"{function.__qualname__}_{version}"
    try:
        dispatcher = numba.njit(cache=True, **(_OPTIONS | options))(copy)
        _keep_if_possible(dispatcher)
    except RuntimeError:  # there is no folder for a cache that may be written
        dispatcher = numba.njit(**(_OPTIONS | options))(copy)
    _finish_when_interrupted(dispatcher)
    return cast(FunctionT, dispatcher)


def _finish_when_interrupted(dispatcher: Any) -> None:
    """Have an interruption wait until a function is compiled.

    An exception that a signal's handler raises inside the compiler may be lost in one of its callbacks, or leave half
    of a function there.
    """
    compile_for = dispatcher._compile_for_args

    def compile_whole(*arguments: Any, **named: Any) -> Any:
        with _interrupted_later():
            return compile_for(*arguments, **named)

    dispatcher._compile_for_args = compile_whole


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """What a signal to interrupt (Ctrl-C) does, it does afterwards."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            usual(*came[0])


def _keep_if_possible(dispatcher: Any) -> None:
    """Have a full disk only cost the next run its time: what cannot be written to the cache is compiled again."""
    save = dispatcher._cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        with contextlib.suppress(OSError):
            save(*arguments)

    dispatcher._cache.save_overload = save_if_possible
