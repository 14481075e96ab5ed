"""The top k tokens of an output projection, without a softmax over the vocabulary.

Logits are computed for one chunk of the vocabulary at a time, and summed and ranked while they are in the cache. The
normalizer is a running sum of exponentials relative to the largest logit so far. A logit that exceeds the smallest of
the current top k is inserted into them. In a tie, the lower token id comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.exp import LOG2_E, exp2, sum_of_exponentials
from headway.kernels.float_bits import MIN_INT32, bits_to_float, float_to_bits, ordered_int
from headway.kernels.int8_gemm import BLOCK, multiply_block
from headway.kernels.jit import Array, jit, jit_internal
from headway.kernels.llvm import CACHE_LINE, Builder, intrinsic

_CHUNK = max(128, BLOCK)  # number of tokens whose logits are computed at a time (128 KiB for 256 rows)
_MAX_PREFETCHED_LINES = 16  # maximum number of cache lines to prefetch while a row's logits are ranked
_LEAST = np.float32(-3.4e38)
_MINUS_INFINITY = np.float32(-np.inf)


@intrinsic(types.void(types.uintp, types.intp))
def _prefetch_lines(builder: Builder, address: ir.Value, count: ir.Value) -> None:
    builder.prefetch_lines(address, count)


@jit
def topk_projection(
    quantized_rows: Array,
    input_scales: Array,
    layer_addresses: Any,
    vocab_size: int,
    banned: Array,
    eos: int,
    out_log_probs: Array,
    out_tokens: Array,
    out_eos_log_probs: Array,
) -> None:
    """Find each row's top k tokens under a packed output projection, and their log-probabilities, best first.

    ``quantized_rows`` (R, K) have the scales ``input_scales`` (R,). ``layer_addresses`` contains the addresses of the
    layer's arrays (:class:`~headway.kernels.int8_linear.QuantizedLinear`). The results are written to ``out_log_probs``
    and ``out_tokens`` (R, k), and the log-probabilities of ``eos`` to ``out_eos_log_probs`` (R,). ``banned`` tokens are
    never chosen but keep their share of the probability. If fewer than k tokens are left, the remaining entries have
    log-probability -inf. If a logit is NaN, all results of its row are NaN.
    """
    weights, accumulator_init, scales, bias = layer_addresses
    rows, width = quantized_rows.shape
    logits = np.empty((rows, _CHUNK), dtype=np.float32)
    largest, totals = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
    for row in range(rows):
        largest[row], totals[row], out_eos_log_probs[row] = _LEAST, np.float32(0), _MINUS_INFINITY
    inputs, own_scales, out = quantized_rows.ctypes.data, input_scales.ctypes.data, logits.ctypes.data
    # The weights of the next chunk are prefetched while the logits of the current chunk are ranked, because ranking
    # reads no weights. multiply_block has already prefetched the first block of the next chunk.
    lines = min(-(-(_CHUNK - BLOCK) * width // CACHE_LINE // max(rows, 1)), _MAX_PREFETCHED_LINES)
    for start in range(0, vocab_size, _CHUNK):
        size = min(_CHUNK, vocab_size - start)
        for column in range(0, size, BLOCK):
            place, block = out + 4 * column, (start + column) // BLOCK
            multiply_block(
                *(weights, accumulator_init, scales, bias, block, inputs, width, own_scales, rows),
                *(_MINUS_INFINITY, place, 4 * _CHUNK),
            )
        ahead = weights + (start + size + BLOCK) * width
        prefetched = lines if start + size < vocab_size else 0
        for row in range(rows):
            _prefetch_lines(ahead + row * lines * CACHE_LINE, prefetched)
            if start <= eos < start + size:
                out_eos_log_probs[row] = logits[row, eos - start]
            largest[row], totals[row] = _add_chunk(
                logits, row, 0, size, start, largest[row], totals[row], banned, out_log_probs, out_tokens
            )
    for row in range(rows):
        _normalize(row, largest[row], totals[row], out_log_probs, out_eos_log_probs)


@jit
def topk_projection_per_sentence(
    quantized_rows: Array,
    input_scales: Array,
    layers: Any,
    slot_tokens: Array,
    slots: Array,
    banned: Array,
    eos: int,
    out_log_probs: Array,
    out_tokens: Array,
    out_eos_log_probs: Array,
) -> None:
    """Like :func:`topk_projection`, but each sentence has its own tokens and weights.

    ``slot_tokens`` (P, blocks, BLOCK) contains the sorted tokens of P slots, padded with zeros. The arrays in
    ``layers`` (P, blocks, ...) are in the same order. ``slots`` (B,) contains the slot of each sentence. The rows of a
    sentence are adjacent.
    """
    weights, accumulator_init, scales, bias = layers
    beams = len(quantized_rows) // max(1, len(slots))
    excluded = np.empty(len(banned), dtype=np.int64)
    for sentence in range(len(slots)):
        slot = slots[sentence]
        slot_vocab = slot_tokens[slot].reshape(-1)
        size, num_excluded, eos_place = 0, 0, -1
        while size < len(slot_vocab) and slot_vocab[size] > 0:
            if slot_vocab[size] == eos:
                eos_place = size
            for token in banned:
                if slot_vocab[size] == token:
                    excluded[num_excluded] = size
                    num_excluded += 1
            size += 1
        rows = slice(sentence * beams, (sentence + 1) * beams)
        layer = (
            *(weights[slot].ctypes.data, accumulator_init[slot].ctypes.data),
            *(scales[slot].ctypes.data, bias[slot].ctypes.data),
        )
        topk_projection(
            *(quantized_rows[rows], input_scales[rows], layer, size, excluded[:num_excluded], eos_place),
            *(out_log_probs[rows], out_tokens[rows], out_eos_log_probs[rows]),
        )
        for r in range(sentence * beams, (sentence + 1) * beams):
            for c in range(out_tokens.shape[1]):
                out_tokens[r, c] = slot_vocab[out_tokens[r, c]]


@jit
def topk_logits(
    logits: Array, banned: Array, eos: int, out_log_probs: Array, out_tokens: Array, out_eos_log_probs: Array
) -> None:
    """Like :func:`topk_projection`, but takes logits (R, V)."""
    rows, vocab_size = logits.shape
    for row in range(rows):
        largest, total = _LEAST, np.float32(0)
        for start in range(0, vocab_size, _CHUNK):
            end = min(start + _CHUNK, vocab_size)
            largest, total = _add_chunk(logits, row, start, end, 0, largest, total, banned, out_log_probs, out_tokens)
        out_eos_log_probs[row] = logits[row, eos] if 0 <= eos < vocab_size else _MINUS_INFINITY
        _normalize(row, largest, total, out_log_probs, out_eos_log_probs)


@jit_internal
def _add_chunk(
    logits: Array,
    row: int,
    first: int,
    end: int,
    offset: int,
    largest: np.float32,
    total: np.float32,
    banned: Array,
    log_probs: Array,
    tokens: Array,
) -> tuple[np.float32, np.float32]:
    """Update a row's top k and its sum of exponentials with the logits in columns ``first`` to ``end``.

    Column c contains the logit of token ``offset`` + c. Returns the largest logit so far and the sum of exponentials
    relative to it. ``tokens`` contains the current top k, and ``log_probs`` contains their logits. Both are initialized
    when the first token is added.
    """
    last = log_probs.shape[1] - 1
    if first + offset == 0:
        for c in range(last + 1):
            log_probs[row, c], tokens[row, c] = _MINUS_INFINITY, 0
    highest = MIN_INT32
    for n in range(first, end):
        highest = max(highest, ordered_int(float_to_bits(logits[row, n])))
    top = bits_to_float(ordered_int(highest))
    if top > largest:
        total *= exp2((largest - top) * LOG2_E)
        largest = top
    chunk_address = logits.ctypes.data + 4 * (row * logits.shape[1] + first)
    added = sum_of_exponentials(chunk_address, end - first, largest)
    if top > log_probs[row, last]:
        for n in range(first, end):
            logit = logits[row, n]
            if logit > log_probs[row, last]:
                excluded = False
                for b in range(len(banned)):
                    excluded |= banned[b] == n + offset
                if not excluded:
                    place = last
                    while place > 0 and logit > log_probs[row, place - 1]:
                        log_probs[row, place], tokens[row, place] = log_probs[row, place - 1], tokens[row, place - 1]
                        place -= 1
                    log_probs[row, place], tokens[row, place] = logit, n + offset
    return largest, total + added


@jit_internal
def _normalize(row: int, largest: np.float32, total: np.float32, log_probs: Array, eos_log_probs: Array) -> None:
    """Convert logits to log-probabilities that are at most 0 even after rounding."""
    normalizer = largest + np.log(total)
    for c in range(log_probs.shape[1]):
        difference = log_probs[row, c] - normalizer
        log_probs[row, c] = np.float32(0) if difference > 0 else difference  # unlike min(), keeps NaN
    difference = eos_log_probs[row] - normalizer
    eos_log_probs[row] = np.float32(0) if difference > 0 else difference
