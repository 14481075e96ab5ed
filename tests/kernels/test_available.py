"""Availability of the kernels, and the fallbacks without them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from headway import kernels
from headway.engine import choose_precision
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16

CPU = torch.device("cpu")


def clear_caches() -> None:
    for cached in (kernels.available, kernels._obstacle, kernels._obstacle_to_compiling):
        cached.cache_clear()
    kernels.cpu_features.cache_clear()


@pytest.fixture(autouse=True)
def detected_again() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


def test_without_numba_models_decode_in_what_pytorch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # makes an import of it fail
    assert not kernels.available()
    assert choose_precision("auto", CPU) == ("bfloat16" if has_fast_bfloat16(CPU) else "float32")
    with pytest.raises(ConfigError, match="the package numba is not installed; use 'auto'"):
        choose_precision("int8", CPU)


def test_other_processors_do_not_even_load_numba_and_kernels_do_not_load_pytorch() -> None:
    code = "import sys; from headway import kernels; print(kernels.available(), {'numba', 'torch'} & set(sys.modules))"
    environment = os.environ | {"HEADWAY_CPU_FEATURES": "none"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "False set()\n"


@pytest.mark.skipif(not kernels.available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.parametrize("feature", ["f16c", "fma"])
def test_a_virtual_machine_may_hide_what_comes_with_avx2(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding

    features = {**llvmlite.binding.get_host_cpu_features(), feature: False}
    clear_caches()
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: features)
    assert not kernels.available()


@pytest.mark.skipif(not kernels.available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.parametrize(("setting", "value"), [("DISABLE_JIT", 1), ("CPU_NAME", "generic"), ("CPU_FEATURES", "+avx")])
def test_kernels_need_the_compiler_and_this_processor(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import config

    monkeypatch.setattr(config, setting, value)
    assert not kernels.available()
