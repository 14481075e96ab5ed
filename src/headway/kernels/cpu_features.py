"""The processor features that decide which kernels run.

``HEADWAY_CPU_FEATURES`` narrows them, for tests and to compare kernels on one machine: ``none``, or a comma-separated
list of features, each of which includes the features that it builds on. A feature that the processor lacks stays off.
"""

from __future__ import annotations

import functools
import os

import llvmlite.binding

from headway.errors import ConfigError

__all__ = ["VARIABLE", "allowed_features", "cpu_features"]

VARIABLE = "HEADWAY_CPU_FEATURES"

# Each feature: the flags (LLVM's names) that it consists of, and the features that it builds on.
_FEATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx2": (("avx2", "f16c", "fma"), ()),  # virtual machines may hide f16c and fma
    "avxvnni": (("avxvnni",), ("avx2",)),
    "avx512bw": (("avx512bw",), ("avx2",)),
    "avx512vnni": (("avx512vnni",), ("avx512bw",)),
    "avx512bf16": (("avx512bf16",), ("avx512bw",)),
    "amx-bf16": (("amx-bf16",), ("avx512bf16", "avx512vnni")),
}


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the features that this processor has and that ``HEADWAY_CPU_FEATURES`` allows."""
    flags = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name in allowed_features() if all(flags.get(flag) for flag in _FEATURES[name][0]))


def allowed_features() -> frozenset[str]:
    """Return the features that ``HEADWAY_CPU_FEATURES`` allows; all of them if it is not set.

    Raises :class:`ConfigError` for an unknown feature.
    """
    value = os.environ.get(VARIABLE, "").strip().lower()
    if not value:
        return frozenset(_FEATURES)
    allowed: set[str] = set()
    pending = [] if value == "none" else [name.strip() for name in value.split(",")]
    while pending:
        name = pending.pop()
        if name not in _FEATURES:
            accepted = ", ".join(_FEATURES)
            raise ConfigError(
                f"{VARIABLE}: unknown processor feature {name!r}; use 'none', or one or more of {accepted}, "
                "separated by commas"
            )
        allowed.add(name)
        pending += _FEATURES[name][1]
    return frozenset(allowed)
