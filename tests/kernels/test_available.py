"""Availability of the kernels, and the fallbacks without them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headway import kernels
from headway.cli.commands.doctor import doctor
from headway.cli.commands.serve import serve
from headway.engine import choose_precision, describe_search_acceleration
from headway.engine.accelerate import describe_forward_acceleration
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16
from headway.kernels import availability
from headway.models.transformer import Transformer, TransformerConfig
from headway.predict import Translator

CPU = torch.device("cpu")


def clear_caches() -> None:
    kernels.is_available.cache_clear()
    availability._obstacle.cache_clear()
    kernels.cpu_features.cache_clear()


@pytest.fixture(autouse=True)
def detected_again() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


def test_without_numba_models_decode_in_what_pytorch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # makes an import of it fail
    assert not kernels.is_available()
    assert kernels.unavailable_reason() == "the package numba is not installed"
    assert choose_precision("auto", CPU) == ("bfloat16" if has_fast_bfloat16(CPU) else "float32")
    with pytest.raises(ConfigError, match="the package numba is not installed; use 'auto'"):
        choose_precision("int8", CPU)


def test_other_processors_do_not_even_load_numba_and_kernels_do_not_load_pytorch() -> None:
    code = (
        "import sys; from headway import kernels; print(kernels.is_available(), {'numba', 'torch'} & set(sys.modules))"
    )
    environment = os.environ | {"HEADWAY_CPU_FEATURES": "none"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "False set()\n"


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.parametrize("feature", ["f16c", "fma"])
def test_a_virtual_machine_may_hide_what_comes_with_avx2(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding

    features = {**llvmlite.binding.get_host_cpu_features(), feature: False}
    clear_caches()
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: features)
    assert not kernels.is_available()


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.parametrize(("setting", "value"), [("DISABLE_JIT", 1), ("CPU_NAME", "generic"), ("CPU_FEATURES", "+avx")])
def test_kernels_need_the_compiler_and_this_processor(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import config

    monkeypatch.setattr(config, setting, value)
    assert not kernels.is_available()
    assert kernels.unavailable_reason() == f"NUMBA_{setting} is set"


def test_the_reason_is_the_processor_or_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CPU_FEATURES", "none")
    assert kernels.unavailable_reason() == "HEADWAY_CPU_FEATURES turns the compiled kernels off"
    clear_caches()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert kernels.unavailable_reason() == "the compiled kernels need an x86 processor, not aarch64"


class Refusing:
    """A finder of modules that imitates a version of Numba that refuses the installed NumPy."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 2.6.\nTry another one.")


needs_avx2 = pytest.mark.skipif("avx2" not in kernels.cpu_features() or not kernels.is_available(), reason="no AVX2")


@needs_avx2
def test_if_numba_refuses_everything_works_and_one_warning_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusing, *sys.meta_path])
    with pytest.warns(UserWarning, match="slower without compiled kernels: .*Numba needs NumPy 2.4 or less") as caught:
        assert choose_precision("auto", CPU) == ("bfloat16" if has_fast_bfloat16(CPU) else "float32")
    assert not kernels.is_available()
    assert len(caught) == 1
    reason = kernels.unavailable_reason()
    assert reason is not None
    assert "Numba needs NumPy 2.4 or less. Got NumPy 2.6." in reason
    assert "\n" not in reason
    sys.meta_path.remove(Refusing)
    assert kernels.unavailable_reason() == reason, "both functions give one answer"
    with pytest.raises(ConfigError, match=f"precision int8 cannot run: {re.escape(reason)}; use 'auto'"):
        choose_precision("int8", CPU)


@needs_avx2
@pytest.mark.parametrize("result", [TypeError("takes 3 arguments"), 7.0])
def test_if_a_small_kernel_fails_or_computes_something_else_none_run(
    result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.kernels import probe

    def broken(*_: object) -> float:
        if isinstance(result, Exception):
            raise result
        return float(result)

    monkeypatch.setattr(probe, "_scaled_sum", broken)
    with pytest.warns(UserWarning, match=r"does not work here \((TypeError: takes 3|ArithmeticError: .*7\.0 instead)"):
        assert not kernels.is_available()


@needs_avx2
def test_commands_give_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_translator: Callable[..., Translator],
) -> None:
    for name in ("de-en", "int8", "auto"):
        make_translator().bundle.save(tmp_path / name, "# A model")
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr("headway.hardware.measure_matmul_gflops", lambda *_: 1.0)
    reason = "the package numba is not installed"
    doctor(compile_ahead=True)
    printed = capsys.readouterr().out
    assert f"by default; not in int8 ({reason})" in printed
    assert f"kernels   none to compile: {reason}" in printed
    (tmp_path / "serve.toml").write_text('[[models]]\npath = "de-en"\n', encoding="utf-8")
    serve(config=tmp_path / "serve.toml", check=True)
    printed = capsys.readouterr().out
    assert printed.endswith(f"correct; 1 models\nmodels compute in bfloat16 or float32 ({reason})\n")
    lines = [f'[[models]]\npath = "{name}"\nprecision = "{name}"\n' for name in ("int8", "auto")]
    (tmp_path / "serve.toml").write_text("".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"the model int8: precision int8 cannot run: {reason}; use 'auto'"):
        serve(config=tmp_path / "serve.toml", check=True)
    assert capsys.readouterr().out == ""
    model = Transformer(TransformerConfig.preset("tiny"), 50, 50)
    assert describe_forward_acceleration(model) == f"plain: the compiled kernels do not run ({reason})"
    assert describe_search_acceleration(model) == f"optimized, in float32 or bfloat16; not in int8 ({reason})"
