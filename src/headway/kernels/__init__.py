"""CPU kernels for decoding and training, written in Python and compiled by Numba when they are first called.

Each PyTorch operation reads its inputs from memory, writes its result to memory and takes microseconds to start. A
decoding step runs hundreds of operations on little data, so starting them takes longer than computing them. A kernel
computes several operations in one pass, such as a linear layer with its quantization, bias, activation, residual
connection and norm.

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

Learning from text:

- :mod:`headway.kernels.lexicon`: the loops of IBM model 1.

These kernels are built from:

- :mod:`headway.kernels.jit`: compilation and multithreading. :mod:`headway.kernels.code_cache` caches compiled code on
  disk.
- :mod:`headway.kernels.llvm`: functions written as LLVM instructions. :mod:`headway.kernels.float_bits`,
  :mod:`headway.kernels.exp` and :mod:`headway.kernels.reductions` are such functions.
- :mod:`headway.kernels.probe`: a kernel that tests whether this version of Numba works.

Kernels take and return NumPy arrays, which are float32 and contiguous unless documented otherwise. They release the
GIL, so several threads can decode at once, each with its own rows. A kernel itself uses several threads only if PyTorch
uses several in the calling thread. The result of a row depends only on that row, bit for bit, and not on the rest of
the batch.

:mod:`headway.kernels.availability` determines whether the kernels can run, and :mod:`headway.kernels.processor`
determines which processor features they may use.
"""

from headway.kernels.availability import is_available, start_compiling, unavailable_reason
from headway.kernels.processor import FEATURES_VARIABLE, allowed_features, cpu_features
from headway.kernels.threads import HostThreads, host_threads

__all__ = [
    "FEATURES_VARIABLE",
    "HostThreads",
    "allowed_features",
    "cpu_features",
    "host_threads",
    "is_available",
    "start_compiling",
    "unavailable_reason",
]
