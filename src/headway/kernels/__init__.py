"""Inner loops of decoding and training on a CPU, written in Python and compiled by Numba when they are first called.

PyTorch's operations each read their inputs from memory, write their result and cost some microseconds to start. A step
of decoding has hundreds of them on little data, so that starting them, not computing, takes most of the time. Here a
loop does in one pass what belongs together: a linear layer with its quantisation, bias, activation, residual and norm;
attention with its keys' places; ranking with its product.

- :mod:`headway.kernels.tiles`: products of integers, the innermost loops, made of vector instructions.
- :mod:`headway.kernels.sums`: those of attention.
- :mod:`headway.kernels.emitting`, :mod:`headway.kernels.bits`: what these are made of.
- :mod:`headway.kernels.linear`: linear layers in 8-bit integers, and layer norms.
- :mod:`headway.kernels.attention`: attention of a few queries over places that a mask opens.
- :mod:`headway.kernels.ranking`: the best tokens of an output projection.
- :mod:`headway.kernels.products`, :mod:`headway.kernels.heads_in_pairs`: linear layers and attention of training in
  bfloat16, made of the tiles of :mod:`headway.kernels.pairs`.
- :mod:`headway.kernels.loss`, :mod:`headway.kernels.softmax`, :mod:`headway.kernels.dropout`,
  :mod:`headway.kernels.norm`, :mod:`headway.kernels.heads`: what training has around them: the softmax of logits and of
  attention, dropout with the ReLU before it or the sum after it, layer norms, and the layout of heads with their
  biases. :mod:`headway.kernels.row_sums` adds up rows for them, :mod:`headway.kernels.arrays` is how tensors come to
  them.

The kernels take and return NumPy arrays, float32 and contiguous unless said otherwise. They do not hold Python's lock,
so that several threads can decode at once, each on its own rows; only products of few rows, and what training has, are
shared by threads (:mod:`headway.kernels.threads`). What a row comes to depends on that row alone, bit for bit, whatever
is beside it.

Compiled code is kept on disk (Numba's cache, beside the modules or in the user's cache directory), so only the first
run on a machine waits for the compiler, some 5 seconds, of training some 25.
"""

from __future__ import annotations

import functools
from typing import Any

from headway.hardware import has_avx2

__all__ = ["available"]


@functools.cache
def available() -> bool:
    """Whether the kernels can run: on an x86 processor with AVX2, where Numba is installed and works."""
    if not has_avx2():
        return False
    try:
        import numba
    except ImportError:  # by which it refuses Pythons and NumPys that it does not know yet, too
        return False
    config: Any = numba.config  # it sets its names at run time
    # The kernels are made for this processor, by a compiler.
    if config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES:
        return False
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("f16c") and features.get("fma"))  # which come with AVX2, but virtual machines may hide
