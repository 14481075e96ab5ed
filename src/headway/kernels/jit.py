"""Numba compilation: the decorators of all kernels, the threads that they run on, and the cache of compiled code.

Compiled code is cached on disk, so only the first call on a machine waits for the compiler. The cache is in
``NUMBA_CACHE_DIR`` if that is set, otherwise next to this module if that folder can be written, otherwise in the user's
cache folder. Code next to this module is also found if its folder cannot be written (a container image, a read-only
install).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from types import FrameType, FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numba
import numpy.typing as npt
from numba.core import caching, compiler, environment
from numba.core.caching import _Cache
from numba.core.runtime import rtsys  # type: ignore[attr-defined]
from numba.misc import appdirs
from numba.np.ufunc import parallel

from headway.kernels import cpu_features, host_threads

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Array = npt.NDArray[Any]

_IndexDataCacheFile: Any = caching.IndexDataCacheFile
_CompileResult: Any = compiler.CompileResult
_rebuild_environment: Any = environment._rebuild_env
_launch_threads: Any = parallel._launch_threads
_user_cache_dir: Any = appdirs.user_cache_dir

# The compiler may reorder sums and fuse products with sums, because it would vectorize no loop otherwise. NaN and
# infinities keep their meaning, so that damaged weights are noticed. No kernel is called through a C function pointer.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": {"reassoc", "contract", "nsz"},
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
}
_EXACT: dict[str, Any] = {"fastmath": {"nsz"}}
# Only loops over `numba.prange` use threads, because starting threads for an array copy takes longer than the copy.
_ONLY_PRANGE = {"prange": True} | dict.fromkeys(
    ("comprehension", "fusion", "inplace_binop", "numpy", "reduction", "setitem", "stencil"), False
)

# Compiled code contains the functions that it calls and depends on the chosen processor features, so it is valid only
# for one version of all kernels and one set of features.
_SOURCES = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
_FEATURES = ",".join(sorted(cpu_features())).encode()
_MAX_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set at run time
_lock = threading.Lock()  # held while a kernel uses threads
_both_forms = False
_requested = threading.local()  # the number of Numba threads that each thread last requested
_POLL_S = 0.01
_background: subprocess.Popen[bytes] | None = None  # the process that compiles kernels
_VERSION = hashlib.blake2b(b"".join([*_SOURCES, _FEATURES]), digest_size=4).hexdigest()


def jit(function: FunctionT) -> FunctionT:
    """Compile ``function`` for the types of its arguments when it is first called with them."""
    return _compile(function, "serial", {})


def jit_inline(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but inlined into the caller: for inner loops, where passing arrays takes as long as the work.

    Such a function cannot be called from Python.
    """
    return _compile(function, "inline", {"forceinline": True, "no_cpython_wrapper": True})


def jit_internal(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, for a function that only compiled code calls. It cannot be called from Python."""
    return _compile(function, "internal", {"no_cpython_wrapper": True})


def jit_exact(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but the compiler neither reorders sums nor fuses products with sums.

    Its results are then the same bits in every caller. See :func:`jit_serial_and_parallel`.
    """
    return _compile(function, "serial", _EXACT)


def jit_parallel(function: FunctionT) -> FunctionT:
    """Like :func:`jit`, but the loops over ``numba.prange`` are divided among Numba's threads."""
    return _compile(function, "parallel", {"parallel": _ONLY_PRANGE})


def uses_one_thread() -> bool:
    """Return whether kernels that the current thread calls use no other threads."""
    return _MAX_THREADS < 2 or host_threads.get() < 2


class SerialAndParallel(Generic[P, R]):
    """The serial and the parallel form of a function, each compiled when it is first called.

    A call runs the parallel form if threads are available. It uses as many threads as the library that calls the
    kernels (:class:`headway.kernels.HostThreads`), but at most ``max_threads``; None means no limit. Only one kernel at
    a time uses threads: if several threads already decode at once, more threads would not help.
    """

    def __init__(self, serial: Callable[P, R], parallel: Callable[P, R], max_threads: int | None = None) -> None:
        self.serial, self.parallel, self.max_threads = serial, parallel, max_threads

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        """Run the serial or the parallel form."""
        if _both_forms:
            self.serial(*arguments, **keywords)
            return self.parallel(*arguments, **keywords)
        if _MAX_THREADS < 2:  # asking the host takes longer than a small kernel
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
    """Run both forms of each kernel inside the block, so that both are compiled."""
    global _both_forms
    _both_forms = True
    try:
        yield
    finally:
        _both_forms = False


def _after_fork() -> None:
    """Use one thread in a forked process, because OpenMP aborts if the parent process has used OpenMP."""
    global _MAX_THREADS, _lock
    _MAX_THREADS, _lock = 1, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _threads_start_fast() -> bool:
    """Return whether Numba uses OpenMP or TBB. Its own thread pool takes 200 microseconds to start a loop.

    Starting OpenMP also changes the number of threads of a host library that uses OpenMP, so the number is restored.
    """
    before = host_threads.get()
    _launch_threads()
    host_threads.set(before)
    layer: str = numba.threading_layer()  # type: ignore[attr-defined]  # imported at run time
    return layer in ("omp", "tbb")


def jit_serial_and_parallel(function: Callable[P, R]) -> SerialAndParallel[P, R]:
    """Compile ``function`` with and without threads, so that both forms give the same bits in every process.

    Neither form reorders sums or fuses products with sums: the compiler does so in one form of a loop but not in
    another, and code compiled in this process may differ from code loaded from the cache. Loops that sum a row use
    :mod:`headway.kernels.reductions`. Other compiled functions that they call must not compute with floating-point
    numbers, except by instructions written with :mod:`headway.kernels.llvm`.
    """
    parallel = _compile(function, "parallel", {"parallel": _ONLY_PRANGE} | _EXACT)
    return SerialAndParallel(jit_exact(function), parallel)


def compile_in_background(module_name: str) -> None:
    """Run the module ``module_name``, which compiles kernels, in a separate process that fills the cache.

    A kernel that is called meanwhile waits for the process instead of being compiled twice.
    """
    global _background
    with contextlib.suppress(OSError):  # without the other process, this one compiles the kernels that it needs
        command = [sys.executable, "-m", module_name]
        _background = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(_background.kill)


def cache_folders() -> list[Path]:
    """Return the folders that are searched for compiled code. New code is written to the first writable folder."""
    config: Any = numba.config  # Numba sets its attributes at run time
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR) / "headway"]
    return [Path(__file__).parent / "__pycache__", Path(_user_cache_dir("headway", False)) / "kernels"]


def _compile(function: FunctionT, form: str, options: dict[str, Any]) -> FunctionT:
    """Return a dispatcher that compiles ``function`` as ``form`` and caches the code."""
    function = cast(FunctionT, inspect.unwrap(function))  # removes the type checks that tests add to functions
    copy = FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__qualname__ = function.__qualname__
    dispatcher: Any = numba.njit(**(_OPTIONS | options))(copy)
    dispatcher._cache = _KernelCache(copy, form, cache_folders())
    # An exception that a signal handler raises inside the compiler could be lost in a callback, or leave a function
    # half compiled.
    dispatcher._compile_for_args = _interrupts_postponed()(dispatcher._compile_for_args)
    return cast(FunctionT, dispatcher)


class _KernelCache(_Cache):
    """The compiled forms of one function on disk.

    Unlike Numba's own cache, it depends on the source code of all kernels and on the chosen processor features, not on
    one file's modification time. It reads from folders that cannot be written, and continues without caching if no
    folder can be written. It loads code without preparing Numba's compiler first, which would take half a second.
    """

    def __init__(self, function: FunctionType, form: str, folders: list[Path]) -> None:
        name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        name = f"{name}-{form}-{_VERSION}.{sys.implementation.cache_tag}"
        self._code = hashlib.blake2b(function.__code__.co_code).hexdigest()
        self._files = [(folder, _IndexDataCacheFile(str(folder), name, _VERSION)) for folder in folders]

    @property
    def cache_path(self) -> str:
        """The path of the function's index in the first folder."""
        return str(self._files[0][1]._index_path)

    @property
    def is_empty(self) -> bool:
        """Whether no folder contains code of the function."""
        return not any(Path(file._index_path).exists() for _, file in self._files)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code compiled for a signature, or None. Wait for the background compilation if it is running."""
        rtsys.initialize(target_context)
        key = sig, target_context.codegen().magic_tuple(), self._code
        while True:
            is_last = _background is None or _background.poll() is not None
            for _, file in self._files:
                with contextlib.suppress(Exception):  # a damaged file is written again
                    payload = file.load(key)
                    if payload is not None:
                        return _CompileResult._rebuild(target_context, *payload)
            if is_last:
                break
            time.sleep(_POLL_S)
        target_context.refresh()  # prepares for compilation
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write code compiled for a signature to the first writable folder."""
        if data.library.has_dynamic_globals:
            return
        for folder, file in self._files:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                *payload, environments = data._reduce()
                stored = tuple(
                    _StoredEnvironment(each) if each.globals["__name__"].startswith("numba.") else each
                    for each in environments
                )
                key = sig, data.codegen.magic_tuple(), self._code
                try:
                    file.save(key, (*payload, stored))
                except (EOFError, UnpicklingError):  # the index is damaged
                    file.flush()
                    file.save(key, (*payload, stored))
                return

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def flush(self) -> None:
        """Delete the cached code of this function."""
        for _, file in self._files:
            file.flush()


class _StoredEnvironment:
    """Pickles the environment of one of Numba's own functions (array creation, indexing) with this module's globals.

    Only code that uses Python objects needs the globals, and kernels use none. With the function's own globals, loading
    would import the function's module and with it much of the compiler, which takes 0.15 s.
    """

    def __init__(self, env: Any) -> None:
        self._parts = __name__, list(env.consts), env.env_name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild_environment, self._parts


@contextlib.contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Delay the handler of SIGINT (Ctrl-C) until the end of the block."""
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
