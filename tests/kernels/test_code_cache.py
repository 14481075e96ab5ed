"""The cache of compiled code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

import numba
from numba.core import caching, runtime

from headway.kernels import code_cache, compile_ahead, decode_attention
from headway.kernels import jit as jit_module


def add_one(x: int) -> int:
    return x + 1


def add_one_to_each(x: np.ndarray) -> None:
    for i in numba.prange(len(x)):
        x[i] += 1


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two cache folders; code is written to the first that can be written."""
    chosen = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(code_cache, "cache_folders", lambda: chosen)
    return chosen


@pytest.fixture(autouse=True)
def nothing_is_reported_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(code_cache, "_lost", set())
    code_cache._cache_class.cache_clear()
    yield
    code_cache._cache_class.cache_clear()


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
    assert code_cache.cache_folders() == [tmp_path / "headway"]


def test_code_that_another_process_compiles_is_awaited(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        """Compiles the function when it is asked a second time whether it runs."""

        polled = 0

        def poll(self) -> int | None:
            self.polled += 1
            if self.polled == 2:
                with monkeypatch.context() as patch:
                    patch.setattr(code_cache, "_background", None)
                    jit_module.jit(add_one)(1)
            return None

    compiler = Compiler()
    monkeypatch.setattr(code_cache, "_background", compiler)
    function = jit_module.jit(add_one)
    assert function(1) == 2
    assert function.stats.cache_hits  # type: ignore[attr-defined]
    assert compiler.polled == 2


def test_if_the_other_process_ends_without_code_this_one_compiles(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]) as failing:
        monkeypatch.setattr(code_cache, "_background", failing)
        assert jit_module.jit(add_one)(1) == 2


def test_a_process_compiles_only_if_nothing_is_cached_and_something_can_be(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(compile_ahead, "compile_in_background", started.append)
    monkeypatch.setattr(compile_ahead, "cache_folders", lambda: folders)
    monkeypatch.setattr(kernels, "is_available", lambda: True)
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


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_is_missing_and_written_again(suffix: str, folders: list[Path]) -> None:
    jit_module.jit(add_one)(1)
    [damaged] = folders[0].glob(f"*{suffix}")
    whole = damaged.stat().st_size
    os.truncate(damaged, whole // 2)
    with warnings.catch_warnings(action="error"):
        assert jit_module.jit(add_one)(1) == 2
    assert damaged.stat().st_size == whole
    again = jit_module.jit(add_one)
    assert again(1) == 2
    assert again.stats.cache_hits  # type: ignore[attr-defined]


def test_code_for_other_types_is_not_run(folders: list[Path]) -> None:
    """If the disk is full, Numba's index may refer to an old file, whose code would read the arguments wrongly."""
    function: Any = jit_module.jit(add_one)
    assert function(1) == 2
    assert function(1.5) == 2.5
    whole, fraction = sorted(folders[0].glob("*.nbc"))
    fraction.write_bytes(whole.read_bytes())
    second: Any = jit_module.jit(add_one)
    with warnings.catch_warnings(action="error"):
        assert second(1.5) == 2.5
    third: Any = jit_module.jit(add_one)
    assert third(1.5) == 2.5
    assert third.stats.cache_hits


def test_a_process_that_hangs_is_awaited_for_a_limited_time(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as hanging:
        hanging.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(code_cache, "_background", hanging)
        monkeypatch.setattr(code_cache, "_WAIT_S", 0.1)
        with pytest.warns(UserWarning, match=r"did not finish a kernel within 0.1 s, so kernels are compiled"):
            assert jit_module.jit(add_one)(1) == 2
        assert hanging.wait(60) == -signal.SIGKILL, "it does not compile the same kernels later"
    assert jit_module.jit(add_one_to_each)(np.zeros(1)) is None, "others are not waited for"


def break_(*_: object, **__: object) -> None:
    raise TypeError("takes 3 arguments")


@pytest.mark.parametrize(
    ("owner", "name", "change", "consequence"),
    [
        (caching, "FunctionCache", "deleted", "Numba's own cache is used"),
        (caching, "CompileResultCacheImpl", "deleted", "Numba's own cache is used"),
        (caching.Cache, "cache_path", "deleted", "Numba's own cache is used"),
        (caching.CacheImpl, "__init__", "changed", "Numba's own cache is used"),
        (caching.Cache, "_load_overload", "changed", "cannot be read and are compiled again"),
        (caching.Cache, "save_overload", "changed", "are not cached"),
        (runtime, "rtsys", "deleted", "loading compiled kernels takes longer"),
        (runtime, "rtsys", "changed", "loading compiled kernels takes longer"),
    ],
)
def test_without_a_private_name_kernels_run_and_say_what_is_lost(
    owner: Any, name: str, change: str, consequence: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    jit_module.jit(add_one)(1)  # Numba itself is prepared
    code_cache._cache_class.cache_clear()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folders[1]))  # of Numba's own cache
    if change == "deleted":
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, break_)
    x = np.zeros(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            jit_module.jit(add_one_to_each)(x)
    assert np.array_equal(x, [2, 2])
    [said] = caught
    assert re.match(f"with Numba {numba.__version__}, .*{consequence}.*pip check", str(said.message))


def test_a_dispatcher_that_keeps_its_cache_elsewhere_is_noticed(folders: list[Path]) -> None:
    enabled = []
    renamed = SimpleNamespace(_code_cache=None, enable_caching=lambda: enabled.append(True))
    with pytest.warns(UserWarning, match="Numba's own cache is used .*_cache"):
        code_cache.use_code_cache(renamed, add_one)  # type: ignore[arg-type]
    assert enabled


def test_folders_that_the_user_chooses_for_numba_are_left_to_numba(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(numba.config, "CACHE_LOCATOR_CLASSES"):
        pytest.skip("this version of Numba does not have the setting")
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folders[1]))
    with pytest.warns(UserWarning, match="Numba's own cache is used"):
        assert jit_module.jit(add_one)(1) == 2
    assert [path.suffix for path in sorted(folders[1].glob("*/*"))] == [".nbc", ".nbi"]
    assert all(code_cache.VERSION in path.name for path in folders[1].glob("*/*")), "valid for this version only"


def test_the_users_folder_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert code_cache.cache_folders() == [Path(kernels.__file__).parent / "__pycache__"]
