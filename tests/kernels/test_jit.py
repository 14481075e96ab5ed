"""Compilation of kernels."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import pytest

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

import numba

from headway.errors import HeadwayError
from headway.kernels import code_cache
from headway.kernels import jit as jit_module


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, even if the parent process ignores it (``nohup make test &``)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_waits_until_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels.jit import jit

    def doubled(x: float) -> float:
        return 2 * x

    function = jit(doubled)
    compile_type = type(function).compile  # type: ignore[attr-defined]

    def interrupted(self: object, *arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return compile_type(self, *arguments)

    usual = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(type(function), "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        function(np.float64(1.5))
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is usual
    assert len(function.overloads) == 1, "it is whole"  # type: ignore[attr-defined]
    assert function(1.5) == 3.0


def test_a_failed_compilation_is_reported_in_one_line_with_what_to_do() -> None:
    def unsupported(x: float) -> float:
        return numba.no_such_function(x)  # type: ignore[no-any-return, attr-defined]

    with pytest.raises(HeadwayError) as failure:
        jit_module.jit(unsupported)(1.0)
    lines = str(failure.value).splitlines()
    assert len(lines) == 1
    assert "cannot compile the kernel" in lines[0]
    assert "no_such_function" in lines[0]
    assert "HEADWAY_CPU_FEATURES=none" in lines[0]


def test_if_threads_do_not_start_kernels_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with NUMBA_THREADING_LAYER=tbb, if TBB is not installed."""

    def fail() -> int:
        raise ValueError("No threading layer could be loaded.")

    def add_one(x: np.ndarray) -> None:
        for i in numba.prange(len(x)):
            x[i] += 1

    monkeypatch.setattr(numba, "get_num_threads", fail)
    monkeypatch.setattr(jit_module, "_MAX_THREADS", 2)
    monkeypatch.setattr(kernels.host_threads, "get", lambda: 2)
    monkeypatch.setattr(code_cache, "_lost", set())
    jit_module._threads_start_fast.cache_clear()
    function, x = jit_module.jit_serial_and_parallel(add_one), np.zeros(3)
    try:
        with pytest.warns(UserWarning, match="kernels use one thread .*No threading layer"):
            function(x)
        function(x)
    finally:
        jit_module._threads_start_fast.cache_clear()
    assert np.array_equal(x, [2, 2, 2])
    assert not function.parallel.signatures  # type: ignore[attr-defined]
