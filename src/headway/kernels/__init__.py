"""CPU kernels for decoding and training, written in Python and compiled by Numba when they are first called.

Each PyTorch operation reads its inputs from memory, writes its result to memory and takes microseconds to start. A
decoding step has hundreds of operations on little data, so starting them takes longer than computing. A kernel does in
one pass what belongs together, such as a linear layer with its quantization, bias, activation, residual and norm.

Decoding with 8-bit weights:

- :mod:`headway.kernels.int8_linear`: linear layers and layer norms; :mod:`headway.kernels.int8_gemm`: their products.
- :mod:`headway.kernels.decode_attention`: attention of a few queries over cached keys and values in float16, made of
  the inner loops of :mod:`headway.kernels.fp16_dot`.
- :mod:`headway.kernels.vocab_topk`: the k most probable tokens of an output projection.

Training in float32 or bfloat16:

- :mod:`headway.kernels.bf16_gemm` and :mod:`headway.kernels.bf16_attention`: linear layers and attention in bfloat16,
  made of the tiles of :mod:`headway.kernels.bf16_tiles`.
- :mod:`headway.kernels.softmax`, :mod:`headway.kernels.cross_entropy`, :mod:`headway.kernels.dropout`,
  :mod:`headway.kernels.layer_norm`, :mod:`headway.kernels.head_layout`: what surrounds the products, forward and
  backward.

These kernels are built from:

- :mod:`headway.kernels.jit`: compilation and its cache; :mod:`headway.kernels.threads`: running a kernel on threads;
  :mod:`headway.kernels.cpu_features`: the processor features that kernels are chosen by.
- :mod:`headway.kernels.llvm`: functions written as LLVM instructions. :mod:`headway.kernels.float_bits`,
  :mod:`headway.kernels.exp` and :mod:`headway.kernels.reductions` are such functions.

Kernels take and return NumPy arrays, float32 and contiguous unless documented otherwise. They release Python's lock, so
several threads can decode at once, each with its own rows. Only products of few rows and the training kernels use
threads themselves. The result of a row depends only on that row, bit for bit, whatever else is in the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["HostThreads", "available", "host_threads", "start_compiling"]


@dataclass
class HostThreads:
    """How kernels learn the number of threads of the library that calls them, and how they restore it.

    :mod:`headway.engine` sets both to PyTorch's functions. Without it, kernels use one thread.
    """

    get: Callable[[], int] = lambda: 1
    set: Callable[[int], None] = lambda _: None


host_threads = HostThreads()


@functools.cache
def available() -> bool:
    """Return whether the kernels can run: on an x86 processor with AVX2, if Numba is installed and works.

    Raises :class:`~headway.errors.ConfigError` if ``HEADWAY_CPU_FEATURES`` names an unknown feature.
    """
    try:
        from headway.kernels.cpu_features import cpu_features

        if "avx2" not in cpu_features():
            return False
        import numba
    except ImportError:  # Numba also raises it on versions of Python and NumPy that it does not support yet
        return False
    config: Any = numba.config  # Numba sets these names at run time
    # The kernels contain instructions of this processor, so Numba must compile, and compile for it.
    return not (config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES)


def start_compiling() -> None:
    """Compile the kernels of int8 decoding in another process if the cache has none, while this one imports PyTorch."""
    if available():
        from headway.kernels import compile_ahead  # imports Numba

        compile_ahead.start_compiling()
