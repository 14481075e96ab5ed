"""Restricting the processor features by which kernels are chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headway import kernels
from headway.errors import ConfigError
from headway.kernels import availability, processor

pytest.importorskip("llvmlite")

import llvmlite.binding

from headway.kernels import FEATURES_VARIABLE, cpu_features

ALL = ("avx2", "f16c", "fma", "avxvnni", "avx512bw", "avx512vnni", "avx512bf16", "amx-bf16", "amx-tile", "amx-int8")


@pytest.fixture(autouse=True)
def detected_again() -> Iterator[None]:
    cpu_features.cache_clear()
    kernels.is_available.cache_clear()
    availability._obstacle.cache_clear()
    yield
    cpu_features.cache_clear()
    kernels.is_available.cache_clear()
    availability._obstacle.cache_clear()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {"avx2", "avxvnni", "avx512bw", "avx512vnni", "avx512bf16", "amx-bf16", "amx-int8"}),
        ("none", set()),
        ("avx2", {"avx2"}),
        ("AVX512VNNI", {"avx2", "avx512bw", "avx512vnni"}),
        ("avx512bf16, avxvnni", {"avx2", "avx512bw", "avx512bf16", "avxvnni"}),
    ],
)
def test_a_feature_includes_those_that_it_builds_on(
    value: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: dict.fromkeys(ALL, True))
    monkeypatch.setattr(processor, "_request_amx_permission", lambda: True)
    monkeypatch.setenv(FEATURES_VARIABLE, value)
    assert cpu_features() == expected


def test_matrix_units_are_not_used_if_the_system_does_not_save_their_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: dict.fromkeys(ALL, True))
    monkeypatch.setattr(processor, "_request_amx_permission", lambda: False)
    monkeypatch.setenv(FEATURES_VARIABLE, "amx-int8")
    assert cpu_features() == {"avx2", "avx512bw", "avx512vnni"}


def test_features_that_the_processor_lacks_cannot_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: {"avx2": True, "f16c": True, "fma": True})
    monkeypatch.setenv(FEATURES_VARIABLE, "amx-bf16")
    assert cpu_features() == {"avx2"}


@pytest.mark.parametrize("value", ["avx3", "none,avx2", "avx2,"])
def test_an_unknown_feature_is_refused_with_those_that_are_accepted(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FEATURES_VARIABLE, value)
    with pytest.raises(ConfigError, match=r"HEADWAY_CPU_FEATURES: unknown processor feature .*'none'.*avx2, avxvnni"):
        cpu_features()


def test_without_any_feature_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FEATURES_VARIABLE, "none")
    assert not kernels.is_available()


def cached_name(features: str) -> str:
    """Return the name under which a function is cached in a process with these features."""
    code = "from headway.kernels import int8_linear; print(int8_linear._quantize.serial.py_func.__qualname__)"
    environment = os.environ | {FEATURES_VARIABLE: features}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.slow
def test_compiled_code_is_cached_for_each_set_of_features() -> None:
    if not kernels.is_available():
        pytest.skip("no AVX2, or no Numba, for the compiled kernels")
    assert cached_name("") == cached_name("")
    assert cached_name("none") != cached_name("avx2")
