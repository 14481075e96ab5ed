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
    """Return whether the kernels can run: on an x86 processor with AVX2, if Numba is installed and works.

    Raises :class:`~headway.errors.ConfigError` if ``HEADWAY_CPU_FEATURES`` names an unknown feature.
    """
    if not has_avx2():
        return False
    try:
        import numba

        from headway.kernels.cpu_features import cpu_features
    except ImportError:  # Numba also raises it on versions of Python and NumPy that it does not support yet
        return False
    config: Any = numba.config  # Numba sets these names at run time
    # The kernels contain instructions of this processor, so Numba must compile, and compile for it.
    if config.DISABLE_JIT or config.CPU_NAME or config.CPU_FEATURES:
        return False
    return "avx2" in cpu_features()
