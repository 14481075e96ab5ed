"""Compilation, and the cache of compiled code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headway import kernels

if not kernels.available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

import numba

from headway.kernels import compile_ahead, decode_attention
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


def add_one(x: int) -> int:
    return x + 1


def add_one_to_each(x: np.ndarray) -> None:
    for i in numba.prange(len(x)):
        x[i] += 1


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two cache folders; code is written to the first that can be written."""
    chosen = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(jit_module, "cache_folders", lambda: chosen)
    return chosen


def compiled_files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.glob("*"))


def test_code_is_cached_and_found_again(folders: list[Path]) -> None:
    first, second = jit_module.jit(add_one), jit_module.jit(add_one)
    assert first(1) == 2
    assert compiled_files(folders[0]) == [".nbc", ".nbi"]
    assert second(1) == 2
    assert second.stats.cache_hits  # type: ignore[attr-defined]


def test_serial_and_parallel_forms_are_cached_separately(folders: list[Path]) -> None:
    for form in (jit_module.jit, jit_module.jit_parallel):
        x = np.zeros(3)
        form(add_one_to_each)(x)
        assert np.array_equal(x, [1, 1, 1])
    assert compiled_files(folders[0]) == [".nbc", ".nbc", ".nbi", ".nbi"]


def test_without_a_first_folder_that_can_be_written_the_second_is_used(folders: list[Path]) -> None:
    folders[0].write_text("a file, not a folder")
    assert jit_module.jit(add_one)(1) == 2
    assert compiled_files(folders[1]) == [".nbc", ".nbi"]


def test_code_is_found_in_a_folder_that_cannot_be_written(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    jit_module.jit(add_one)(1)
    monkeypatch.setattr(Path, "mkdir", refuse)
    again = jit_module.jit(add_one)
    assert again(1) == 2
    assert again.stats.cache_hits  # type: ignore[attr-defined]


def test_if_nothing_can_be_written_code_is_compiled_each_time(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert jit_module.jit(add_one)(1) == 2
    assert not any(folder.exists() for folder in folders)


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_the_users_choice_of_a_cache_folder_is_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert jit_module.cache_folders() == [tmp_path / "headway"]


def test_code_that_another_process_compiles_is_awaited(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        """Compiles the function when it is asked a second time whether it runs."""

        polled = 0

        def poll(self) -> int | None:
            self.polled += 1
            if self.polled == 2:
                with monkeypatch.context() as patch:
                    patch.setattr(jit_module, "_background", None)
                    jit_module.jit(add_one)(1)
            return None

    compiler = Compiler()
    monkeypatch.setattr(jit_module, "_background", compiler)
    function = jit_module.jit(add_one)
    assert function(1) == 2
    assert function.stats.cache_hits  # type: ignore[attr-defined]
    assert compiler.polled == 2


def test_if_the_other_process_ends_without_code_this_one_compiles(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]) as failing:
        monkeypatch.setattr(jit_module, "_background", failing)
        assert jit_module.jit(add_one)(1) == 2


def test_a_process_compiles_only_if_nothing_is_cached_and_something_can_be(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(compile_ahead, "compile_in_background", started.append)
    monkeypatch.setattr(compile_ahead, "cache_folders", lambda: folders)
    monkeypatch.setattr(kernels, "available", lambda: True)
    function = jit_module.jit(add_one)
    monkeypatch.setattr(decode_attention, "write_kv", function)
    kernels.start_compiling()
    assert started == ["headway.kernels.compile_ahead"]
    function(1)
    kernels.start_compiling()
    assert len(started) == 1, "there is code in the cache"
    monkeypatch.setattr(decode_attention, "write_kv", jit_module.jit(add_one_to_each))
    monkeypatch.setattr(os, "access", lambda *_: False)
    kernels.start_compiling()
    assert len(started) == 1, "no folder can be written"
