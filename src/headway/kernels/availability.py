"""Determine whether the kernels can run on this machine, and start to compile them before their first use."""

from __future__ import annotations

import functools
import importlib
import platform
import warnings
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError
from headway.kernels.processor import FEATURES_VARIABLE, allowed_features, cpu_features

_REQUIRED = frozenset({"llvmlite", "numba"})


@functools.cache
def is_available() -> bool:
    """Return whether the kernels can run. Warn once if they could run with a different version of Numba.

    Raises :class:`~headway.errors.ConfigError` if ``HEADWAY_CPU_FEATURES`` names an unknown feature.
    """
    obstacle = _obstacle()
    if obstacle is not None and obstacle.is_failure:
        warnings.warn(f"slower without compiled kernels: {obstacle.reason}", stacklevel=2)
    return obstacle is None


def unavailable_reason() -> str | None:
    """Return why the kernels cannot run on this machine, or None if they can."""
    obstacle = _obstacle()
    return None if obstacle is None else obstacle.reason


@dataclass(frozen=True)
class _Obstacle:
    """The reason why the kernels cannot run. ``is_failure`` is True if Numba failed, not the machine or a setting."""

    reason: str
    is_failure: bool = False


@functools.cache
def _obstacle() -> _Obstacle | None:
    """Return the reason why the kernels cannot run, or None after a small test kernel has run."""
    obstacle = _obstacle_to_compiling()
    if obstacle is None:
        from headway.kernels import probe

        try:
            probe.run()
        except Exception as error:
            return _failure(error)
    return obstacle


def _obstacle_to_compiling() -> _Obstacle | None:
    """Return the reason why the kernels cannot be compiled, or None. Nothing is compiled to find out."""
    machine = platform.machine()
    if machine.lower() not in ("x86_64", "amd64"):
        return _Obstacle(f"the compiled kernels need an x86 processor, not {machine or 'an unknown one'}")
    try:
        if "avx2" not in cpu_features():
            is_restricted = "avx2" not in allowed_features()
            off, lacks = f"{FEATURES_VARIABLE} turns the compiled kernels off", "the processor lacks AVX2, FMA or F16C"
            return _Obstacle(off if is_restricted else lacks)
        import numba

        config: Any = numba.config  # Numba sets these names at run time
        # The kernels contain instructions of this processor, so Numba must be enabled and must compile for it.
        for name in ("DISABLE_JIT", "CPU_NAME", "CPU_FEATURES"):
            if getattr(config, name):
                return _Obstacle(f"NUMBA_{name} is set")
        importlib.import_module("headway.kernels.probe")
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name in _REQUIRED:
            return _Obstacle("the package numba is not installed")
        return _failure(error)
    except Exception as error:  # Numba rejects versions of Python and NumPy that it does not support
        return _failure(error)
    return None


def _failure(error: Exception) -> _Obstacle:
    from importlib.metadata import PackageNotFoundError, version

    try:
        name = f"Numba {version('numba')}"
    except PackageNotFoundError:
        name = "Numba"
    cause = error.__cause__ or error
    reason = f"{type(cause).__name__}: {cause}".partition("\n")[0]
    return _Obstacle(f"{name} does not work here ({reason}); 'pip check' reports incompatible versions", True)


def start_compiling() -> None:
    """Start to compile the int8 decoding kernels in a separate process, unless they are cached.

    In the meantime, this process can import PyTorch.
    """
    if _obstacle_to_compiling() is None:
        from headway.kernels.code_cache import is_uncached  # imports Numba
        from headway.kernels.decode_attention import write_kv

        if is_uncached(write_kv):
            from headway.kernels import compile_ahead

            compile_ahead.start_compilation_process()
