"""What happens while functions are compiled."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from headway import kernels

if not kernels.available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)


def test_an_interruption_waits_until_a_function_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.kernels.compiling import compiled

    def doubled(x: float) -> float:
        return 2 * x

    function = compiled(doubled)
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
