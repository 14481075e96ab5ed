"""The processor features that kernels may use.

The processor's features determine which kernels run. ``HEADWAY_CPU_FEATURES`` restricts these features for tests, or to
compare kernels on one machine. Its value is ``none`` or a comma-separated list of features. Each feature also enables
the features that it builds on. A feature that the processor lacks stays disabled.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from headway.errors import ConfigError

FEATURES_VARIABLE = "HEADWAY_CPU_FEATURES"

_AMX_INT8 = "amx-int8"
# Maps each feature to the processor flags that it requires (LLVM's names) and the features that it builds on.
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
    """Request permission from Linux to use the AMX tile registers, and return whether it is granted.

    Without this permission, the first AMX instruction terminates the process. Forked processes inherit the permission.
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
