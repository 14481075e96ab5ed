"""Compile the int8 decoding kernels before their first use, for containers and read-only installs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from headway.kernels import probe
from headway.kernels.activations import CHUNK, gelu_tanh
from headway.kernels.code_cache import cache_folders, compile_in_background
from headway.kernels.decode_attention import attend, padded_width, write_keys_and_values, write_kv
from headway.kernels.fp16_dot import KEYS_PER_DOT
from headway.kernels.int8_blocks import decoder_blocks, self_attention_blocks
from headway.kernels.int8_gemm import BLOCK, accumulator_init, pack_weight_rows, quantize_weight
from headway.kernels.int8_linear import MIN_PARALLEL, LayerNormParams, QuantizedLinear, layer_norm, quantize_rows
from headway.kernels.jit import run_serial_and_parallel
from headway.kernels.vocab_topk import topk_logits, topk_projection, topk_projection_per_sentence

_WIDTH = 8


def compile_decoding_kernels() -> list[str]:
    """Compile all int8 decoding kernels and return the folders in which the code is cached.

    Each kernel is called once with small arrays of the types that decoding uses. The compiled code does not depend on
    sizes. Kernels that every translation needs are compiled first.
    """
    probe.run()
    rows = np.zeros((2, 3 * _WIDTH), dtype=np.float32)
    x, weight = np.zeros((2, _WIDTH), dtype=np.float32), np.zeros((_WIDTH, _WIDTH), dtype=np.float32)
    bias = np.zeros(_WIDTH, dtype=np.float32)
    layer = QuantizedLinear(weight, bias)
    with run_serial_and_parallel():
        layer(np.zeros((MIN_PARALLEL // _WIDTH, _WIDTH), dtype=np.float32))
        gelu_tanh(np.zeros((1, 2 * CHUNK), dtype=np.float32))
        slots, spans = np.zeros(1, dtype=np.int64), np.array([[0, 2]])
        keys = np.zeros((1, 2, padded_width(_WIDTH)), dtype=np.int16)
        newest, entries, positions = np.arange(2), np.zeros((2, KEYS_PER_DOT), dtype=np.int64), np.array([[0, 1]])
        write_kv(rows, 0, _WIDTH, 1, keys, slots, spans, newest)
        write_keys_and_values(rows, (_WIDTH, _WIDTH, _WIDTH), 1, keys, keys, slots, spans, newest)
        attend(rows, 1, 1, _WIDTH, keys, keys, slots, spans, entries, positions, np.empty_like(x))
    norm = LayerNormParams(bias, bias, 1e-5)
    layer_norm(x, norm)
    wide, sizes = QuantizedLinear(np.tile(weight, (3, 1))), (1, 1, (_WIDTH,) * 3, _WIDTH)
    layers = np.array([[wide.kernel_parameters] + 5 * [layer.kernel_parameters]])
    norms = 2 * (
        np.zeros((1, 3, _WIDTH), dtype=np.float32),
        np.zeros((1, 3, _WIDTH), dtype=np.float32),
        np.ones((1, 3)),
    )
    prefix = keys[None], keys[None], slots, spans, newest, entries, positions
    self_attention_blocks(x, layers, norms, sizes, 1.0, *prefix)
    decoder_blocks(x, layers, norms, sizes, sizes, *prefix, keys[None], keys[None], slots, entries, positions)
    results = np.empty((2, 1), np.float32), np.empty((2, 1), np.int64), np.empty(2, np.float32)
    banned, quantized = np.zeros(0, dtype=np.int64), quantize_rows(x, layer.padded_in_features)
    topk_logits(x, banned, 2, *results)
    topk_projection(*quantized, layer.addresses, layer.out_features, banned, 2, *results)
    listed = np.zeros((1, 1, BLOCK), dtype=np.int64)
    levels, scale = quantize_weight(weight)
    chosen = pack_weight_rows(levels, listed), accumulator_init(levels)[listed], scale[listed], bias[listed]
    topk_projection_per_sentence(*quantized, chosen, listed, slots, banned, 2, *results)
    return [str(folder) for folder in cache_folders()]


def start_compilation_process() -> None:
    """Compile the int8 decoding kernels in a separate process, if the code can be cached."""
    if any(map(_can_write, cache_folders())):
        compile_in_background(__name__)


def _can_write(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return os.access(folder, os.W_OK)


if __name__ == "__main__":
    compile_decoding_kernels()
