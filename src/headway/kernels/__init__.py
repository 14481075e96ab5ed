"""CPU kernels for decoding and training, written in Python and compiled by Numba when they are first called.

Each PyTorch operation reads its inputs from memory, writes its result to memory and takes microseconds to start. A
decoding step has hundreds of operations on little data, so starting them takes longer than computing. A kernel computes
several of them in one pass, such as a linear layer with its quantization, bias, activation, residual connection and
norm.

Decoding with 8-bit weights:

- :mod:`headway.kernels.int8_linear`: linear layers and layer norms. :mod:`headway.kernels.int8_gemm` computes their
  matrix products.
- :mod:`headway.kernels.decode_attention`: attention of a few queries over cached keys and values in float16. Its inner
  loops are in :mod:`headway.kernels.fp16_dot`.
- :mod:`headway.kernels.vocab_topk`: the k most probable tokens of an output projection.

Training in float32 or bfloat16:

- :mod:`headway.kernels.bf16_gemm` and :mod:`headway.kernels.bf16_attention`: linear layers and attention in bfloat16,
  built from the tiles of :mod:`headway.kernels.bf16_tiles`.
- :mod:`headway.kernels.softmax`, :mod:`headway.kernels.dropout`, :mod:`headway.kernels.layer_norm`,
  :mod:`headway.kernels.head_layout`: the operations around the matrix products, forward and backward.

These kernels are built from:

- :mod:`headway.kernels.jit`: compilation, and running a kernel on threads. :mod:`headway.kernels.code_cache` keeps
  compiled code on disk.
- :mod:`headway.kernels.llvm`: functions written as LLVM instructions. :mod:`headway.kernels.float_bits`,
  :mod:`headway.kernels.exp` and :mod:`headway.kernels.reductions` are such functions.
- :mod:`headway.kernels.probe`: a kernel that tests whether this version of Numba works.

Kernels take and return NumPy arrays, float32 and contiguous unless documented otherwise. They release the GIL, so
several threads can decode at once, each with its own rows. A kernel uses threads itself only if PyTorch has several in
the calling thread. The result of a row depends only on that row, bit for bit, and not on the rest of the batch.

The processor's features determine which kernels run. ``HEADWAY_CPU_FEATURES`` restricts the features, for tests and to
compare kernels on one machine. Its value is ``none`` or a comma-separated list of features, each of which includes the
features that it builds on. A feature that the processor lacks stays off.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError

__all__ = [
    "FEATURES_VARIABLE",
    "HostThreads",
    "allowed_features",
    "available",
    "cpu_features",
    "host_threads",
    "start_compiling",
    "unavailable_reason",
]

FEATURES_VARIABLE = "HEADWAY_CPU_FEATURES"
_REQUIRED = frozenset({"llvmlite", "numba"})


@dataclass
class HostThreads:
    """Functions that return and set the number of threads of the library that calls the kernels.

    :mod:`headway.engine` sets both fields to PyTorch's functions. Without it, kernels use one thread.
    """

    get: Callable[[], int] = lambda: 1
    set: Callable[[int], None] = lambda _: None


host_threads = HostThreads()

_AMX_INT8 = "amx-int8"
# For each feature: the processor flags that it requires, by LLVM's names, and the features that it builds on.
_FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx2": (("avx2", "f16c", "fma"), ()),  # virtual machines may hide f16c and fma
    "avxvnni": (("avxvnni",), ("avx2",)),
    "avx512bw": (("avx512bw",), ("avx2",)),
    "avx512vnni": (("avx512vnni",), ("avx512bw",)),
    "avx512bf16": (("avx512bf16",), ("avx512bw",)),
    "amx-bf16": (("amx-bf16",), ("avx512bf16", "avx512vnni")),
    _AMX_INT8: ((_AMX_INT8, "amx-tile"), ("avx512vnni",)),
}


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the features that this processor has and that ``HEADWAY_CPU_FEATURES`` allows."""
    import llvmlite.binding

    flags = llvmlite.binding.get_host_cpu_features()
    features = {name for name in allowed_features() if all(flags.get(flag) for flag in _FEATURES[name][0])}
    if _AMX_INT8 in features and not _request_amx_permission():
        features.remove(_AMX_INT8)
    return frozenset(features)


def _request_amx_permission() -> bool:
    """Ask Linux for permission to use the AMX tile registers, and return whether it is granted.

    Without it, the first instruction that uses them ends the process. Forked processes inherit the permission.
    """
    if not sys.platform.startswith("linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # arch/x86/include/uapi/asm/prctl.h
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def allowed_features() -> frozenset[str]:
    """Return the features that ``HEADWAY_CPU_FEATURES`` allows, or all features if it is not set.

    Raises :class:`ConfigError` for an unknown feature.
    """
    value = os.environ.get(FEATURES_VARIABLE, "").strip().lower()
    if not value:
        return frozenset(_FEATURES)
    allowed: set[str] = set()
    pending = [] if value == "none" else [name.strip() for name in value.split(",")]
    while pending:
        name = pending.pop()
        if name not in _FEATURES:
            accepted = ", ".join(_FEATURES)
            raise ConfigError(
                f"{FEATURES_VARIABLE}: unknown processor feature {name!r}; use 'none', or one or more of {accepted}, "
                "separated by commas"
            )
        allowed.add(name)
        pending += _FEATURES[name][1]
    return frozenset(allowed)


@functools.cache
def available() -> bool:
    """Return whether the kernels can run, and warn once if they could with another version of Numba.

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
    """The reason why the kernels cannot run, and whether it is a failure of Numba, not of the machine or a setting."""

    reason: str
    is_failure: bool = False


@functools.cache
def _obstacle() -> _Obstacle | None:
    """Return what keeps the kernels from running, after trying a small one."""
    obstacle = _obstacle_to_compiling()
    if obstacle is None:
        from headway.kernels import probe

        try:
            probe.run()
        except Exception as error:
            return _failure(error)
    return obstacle


def _obstacle_to_compiling() -> _Obstacle | None:
    """Return what keeps the kernels from being compiled, as far as it is known without compiling."""
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
    except Exception as error:  # Numba refuses versions of Python and NumPy that it does not know
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
    return _Obstacle(f"{name} does not work here ({reason}); 'pip check' reports versions that do not fit", True)


def start_compiling() -> None:
    """Compile the kernels of int8 decoding in another process, unless they are cached.

    Meanwhile this process can import PyTorch.
    """
    if _obstacle_to_compiling() is None:
        from headway.kernels.code_cache import has_no_code  # imports Numba
        from headway.kernels.decode_attention import write_kv

        if has_no_code(write_kv):
            from headway.kernels import compile_ahead

            compile_ahead.start()
