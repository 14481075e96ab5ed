"""Products and attention as on other processors, in a separate process: ``python emulation.py PROCESSOR``.

LLVM compiles vectors of any length for any processor, but not another processor's instructions. The few instructions
that tiles use are therefore functions here, written with plain operations. The layout, the loops and the registers of
the tiles are those of the emulated processor, and the results are compared with NumPy.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir

PROCESSORS = {
    "avx2": {},
    "avx2-vnni": {"avxvnni": True},
    "avx512": {"avx512bw": True},
    "avx512-vnni": {"avx512bw": True, "avx512vnni": True},
}
HIDDEN = dict.fromkeys(("avxvnni", "avx512bw", "avx512vnni", "amx-int8"), False)
ROWS, SHAPES = (1, 2, 3, 4, 6, 7, 13, 20), ((1, 1), (5, 7), (40, 64), (33, 100), (64, 8))


def every(builder: ir.IRBuilder, vector: ir.Value, first: int, step: int) -> ir.Value:
    """Return each ``step``-th lane, beginning with ``first``."""
    lanes = list(range(first, vector.type.count, step))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def add_lanes(builder: ir.IRBuilder, vector: ir.Value, together: int) -> ir.Value:
    """Return the sums of groups of neighboring lanes."""
    total = every(builder, vector, 0, together)
    for lane in range(1, together):
        total = builder.add(total, every(builder, vector, lane, together))
    return total


def products(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, *, unsigned: bool) -> ir.Value:
    """Convert to 32 bits. With ``unsigned``, the first operand is unsigned."""
    wide = ir.VectorType(ir.IntType(32), a.type.count)
    return builder.mul((builder.zext if unsigned else builder.sext)(a, wide), builder.sext(b, wide))


def write_out(name: str, builder: ir.IRBuilder, arguments: Any) -> None:
    """Compute the instruction's result as defined in Intel's manual."""
    if "vpdpbusd" in name:
        total, a, b = arguments
        as_bytes = ir.VectorType(ir.IntType(8), 4 * total.type.count)
        a, b = builder.bitcast(a, as_bytes), builder.bitcast(b, as_bytes)
        builder.ret(builder.add(total, add_lanes(builder, products(builder, a, b, unsigned=True), 4)))
    elif "pmaddub" in name or "pmadd.ub" in name:
        sums = add_lanes(builder, products(builder, *arguments, unsigned=True), 2)
        for bound, beyond in ((2**15 - 1, ">"), (-(2**15), "<")):
            limit = ir.Constant(sums.type, [bound] * sums.type.count)
            sums = builder.select(builder.icmp_signed(beyond, sums, limit), limit, sums)
        builder.ret(builder.trunc(sums, ir.VectorType(ir.IntType(16), sums.type.count)))
    else:
        assert "pmadd" in name
        builder.ret(add_lanes(builder, products(builder, *arguments, unsigned=False), 2))


def emulate(processor: str) -> None:
    """Make :mod:`headway.kernels.int8_gemm` use another processor's instructions, with a temporary code cache."""
    config: Any = numba.config
    config.CACHE_DIR = tempfile.mkdtemp()
    numba.njit(lambda x: x)(1)  # Numba itself asks for the name of the processor
    features = dict(llvmlite.binding.get_host_cpu_features()) | HIDDEN | PROCESSORS[processor]
    llvmlite.binding.get_host_cpu_features = lambda: features
    from headway.kernels import llvm

    real = llvm.llvm_function

    def function(builder: ir.IRBuilder, name: str, result_type: ir.Type, *arguments: ir.Type) -> Any:
        if not name.startswith("llvm.x86"):
            return real(builder, name, result_type, *arguments)
        written = real(builder, f"written_out.{name}", result_type, *arguments)
        if not written.blocks:
            written.linkage = "internal"
            write_out(name, ir.IRBuilder(written.append_basic_block()), written.args)
        return written

    llvm.llvm_function = function


def check_attention(random: np.random.Generator, width: int, count: int) -> None:
    """Two sentences with three queries each, two heads, and the given number of positions."""
    from headway.kernels.decode_attention import attend, padded_width, write_kv
    from headway.kernels.fp16_dot import KEYS_PER_DOT

    query, keys, values = (
        random.standard_normal((rows, 2 * width), dtype=np.float32) for rows in (6, 2 * count, 2 * count)
    )
    slots, out, entries = np.arange(2), np.empty_like(query), np.tile(np.arange(count), 2)
    own, queries = np.array([[0, count], [count, 2 * count]]), np.array([[0, 3], [3, 6]])
    kept_keys, kept_values = (np.zeros((4, count, padded_width(width)), dtype=np.int16) for _ in range(2))
    for rows, kept in ((keys, kept_keys), (values, kept_values)):
        write_kv(rows, 0, width, 2, kept, slots, own, entries)
    listed, positions = np.minimum(np.arange(count + KEYS_PER_DOT), count - 1), np.array([[0, count]] * 2)
    attend(query, 2, 2, width, kept_keys, kept_values, slots, queries, listed[None], positions, out)
    query, keys, values = (x.reshape(2, -1, 2, width) for x in (query, keys, values))
    scores = np.exp(np.einsum("bqhk,bchk->bqhc", query, keys))
    expected = np.einsum("bqhc,bchk->bqhk", scores / scores.sum(-1, keepdims=True), values)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=2e-2, atol=5e-3)


def main() -> None:
    processor = sys.argv[1]
    emulate(processor)
    from headway.kernels import int8_gemm
    from headway.kernels.int8_gemm import INPUT_OFFSET, quantize_weight
    from headway.kernels.int8_linear import QuantizedLinear, quantize_rows

    made_for = int8_gemm.BLOCK, int8_gemm._HAS_VPDPBUSD
    assert made_for == (32 if "512" in processor else 16, "vnni" in processor)
    random = np.random.default_rng(0)
    for outputs, inputs in SHAPES:
        weight, bias = random.standard_normal((outputs, inputs), dtype=np.float32), random.random(outputs, np.float32)
        layer = QuantizedLinear(weight, bias)
        integers, scale = quantize_weight(weight)
        for rows in ROWS:
            x = random.standard_normal((rows, inputs), dtype=np.float32)
            levels, scales = quantize_rows(x, inputs)
            sums = (levels.astype(np.int32) - INPUT_OFFSET) @ integers.T.astype(np.int32)
            np.testing.assert_allclose(layer(x), sums * scale * scales[:, None] + bias, rtol=1e-5, atol=1e-6)
    for width, count in ((5, 1), (16, 9), (64, 20), (72, 33)):
        check_attention(random, width, count)


if __name__ == "__main__":
    main()
