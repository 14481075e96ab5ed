"""Numba compilation: the decorators of all kernels, and the choice between serial and parallel execution."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numba
import numpy.typing as npt

from headway.errors import HeadwayError
from headway.kernels.code_cache import VERSION, use_code_cache, warn_feature_lost
from headway.kernels.processor import FEATURES_VARIABLE
from headway.kernels.threads import host_threads

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Array = npt.NDArray[Any]

# The compiler may reorder sums and fuse products with sums, because it would not vectorize loops otherwise. NaN and
# infinities keep their meaning, so that damaged weights are detected. No kernel is called through a C function pointer.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz"},
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
_EXACT: dict[str, Any] = {"fastmath": {"nsz"}}
# Only loops over `numba.prange` use threads, because starting threads to copy an array takes longer than the copy.
_ONLY_PRANGE = {"prange": True} | dict.fromkeys(
    ("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil"), False
)

_MAX_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set at run time
_lock = threading.Lock()  # held while a kernel uses threads
_both_forms = False
_requested = threading.local()  # the number of Numba threads that each thread last requested


def jit(function: FunctionT) -> FunctionT:
    """Compile ``function`` for the types of its arguments when it is first called with them."""
    return _compile(function, "serial", {})


def jit_inline(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but inlined into the caller, for inner loops in which passing arrays takes as long as the work.

    The compiled function cannot be called from Python.
    """
    return _compile(function, "inline", {"forceinline": True, "no_cpython_wrapper": True})


def jit_internal(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, for a function that is called only from compiled code. It cannot be called from Python."""
    return _compile(function, "internal", {"no_cpython_wrapper": True})


def jit_exact(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but the compiler neither reorders sums nor fuses products with sums.

    The function's results are then bitwise the same in every caller. See :func:`jit_serial_and_parallel`.
    """
    return _compile(function, "serial", _EXACT)


def jit_parallel(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but loops over ``numba.prange`` are divided among Numba's threads."""
    return _compile(function, "parallel", {"parallel": _ONLY_PRANGE})


def uses_one_thread() -> bool:
    """Return whether kernels called from the current thread use only this thread."""
    return _MAX_THREADS < 2 or host_threads.get() < 2


class SerialAndParallel(Generic[P, R]):
    """The serial and the parallel form of a function, each compiled when it is first called.

    A call runs the parallel form if threads are available. It uses as many threads as the library that calls the
    kernels (:class:`headway.kernels.HostThreads`), but at most ``max_threads``. None means no limit. Only one kernel
    uses threads at a time, because more threads do not help if several threads already decode at once.
    """

    def __init__(self, serial: Callable[P, R], parallel: Callable[P, R], max_threads: int | None = None) -> None:
        self.serial, self.parallel, self.max_threads = serial, parallel, max_threads

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Run the serial or the parallel form."""
        if _both_forms:
            self.serial(*arguments, **keywords)
            return self.parallel(*arguments, **keywords)
        if _MAX_THREADS < 2:  # querying the host library takes longer than a small kernel
            return self.serial(*arguments, **keywords)
        threads = min(host_threads.get(), self.max_threads or _MAX_THREADS, _MAX_THREADS)
        if threads < 2 or not _lock.acquire(blocking=False):
            return self.serial(*arguments, **keywords)
        try:
            if not _threads_start_fast():
                return self.serial(*arguments, **keywords)
            if getattr(_requested, "threads", None) != threads:
                numba.set_num_threads(threads)
                _requested.threads = threads
            return self.parallel(*arguments, **keywords)
        finally:
            _lock.release()


@contextlib.contextmanager
def run_serial_and_parallel() -> Iterator[None]:
    """Inside this context, run both forms of each kernel, so that both are compiled."""
    global _both_forms
    _both_forms = True
    try:
        yield
    finally:
        _both_forms = False


def _after_fork() -> None:
    """Use one thread in a forked process, because OpenMP aborts if the parent process has already used it."""
    global _MAX_THREADS, _lock
    _MAX_THREADS, _lock = 1, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _threads_start_fast() -> bool:
    """Return whether Numba uses OpenMP or TBB. Numba's own thread pool takes 200 microseconds to start a loop.

    Starting OpenMP also changes the number of threads of a host library that uses OpenMP, so this number is restored.
    """
    before = host_threads.get()
    try:
        numba.get_num_threads()  # starts the threads
        layer: str = numba.threading_layer()  # type: ignore[attr-defined]  # imported at run time
    except Exception as error:  # NUMBA_THREADING_LAYER may name a library that is not installed
        warn_feature_lost("kernels use one thread", error)
        return False
    finally:
        host_threads.set(before)
    return layer in ("omp", "tbb")


def jit_serial_and_parallel(function: Callable[P, R]) -> SerialAndParallel[P, R]:
    """Compile ``function`` with and without threads, such that both forms return bitwise equal results.

    Neither form reorders sums or fuses products with sums. Otherwise, the compiler could do so in one form of a loop
    but not in the other, and code compiled in this process could differ from code loaded from the cache. Loops that sum
    a row use :mod:`headway.kernels.reductions`. Other compiled functions that ``function`` calls must not compute with
    floating-point numbers, except by instructions written with :mod:`headway.kernels.llvm`.
    """
    parallel = _compile(function, "parallel", {"parallel": _ONLY_PRANGE} | _EXACT)
    return SerialAndParallel(jit_exact(function), parallel)


def _compile(function: FunctionT, form: str, options: dict[str, Any]) -> FunctionT:
    """Return a dispatcher that compiles ``function`` as ``form`` and caches the code."""
    function = cast(FunctionT, inspect.unwrap(function))  # removes the type checks that tests add to functions
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__qualname__ = f"{function.__qualname__}.{form}.{VERSION}"  # the name of the compiled code in the cache
    dispatcher: Any = numba.njit(**(_OPTIONS | options))(copy)
    use_code_cache(dispatcher, copy)
    try:
        dispatcher._compile_for_args = _compile_whole(dispatcher._compile_for_args, function)
    except AttributeError as error:
        warn_feature_lost("Ctrl-C may be lost while kernels are compiled", error)
    return cast(FunctionT, dispatcher)


def _compile_whole(compile_for_args: Callable[P, R], function: Callable[..., Any]) -> Callable[P, R]:
    """Postpone interrupts until a compilation ends, and report its failure as a :class:`HeadwayError`.

    An exception that a signal handler raises inside the compiler could be lost in a callback, or leave a function only
    partly compiled.
    """

    @functools.wraps(compile_for_args)
    def compile_whole(*args: P.args, **kwargs: P.kwargs) -> R:
        with _interrupts_postponed():
            try:
                return compile_for_args(*args, **kwargs)
            except Exception as error:
                name, reason = f"{function.__module__}.{function.__qualname__}", str(error).partition("\n")[0]
                raise HeadwayError(
                    f"Numba {numba.__version__} cannot compile the kernel {name}: {type(error).__name__}: {reason}",
                    hint=f"set the environment variable {FEATURES_VARIABLE}=none to compute without compiled kernels",
                ) from error

    return compile_whole


@contextlib.contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Delay the SIGINT handler (Ctrl-C) until the context ends."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])
