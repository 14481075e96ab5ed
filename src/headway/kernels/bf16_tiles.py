"""Products of bfloat16 pairs, in tiles that fit the processor's registers: the core of all matrix products in training.

One instruction, ``vdpbf16ps`` (AVX-512 BF16), adds the products of two pairs to each of 16 float32 sums. All matrix
products are loops over pairs that repeat this instruction: a row's pair, broadcast to all lanes, is multiplied by the
pairs of 16 or 32 columns, which are adjacent in a *panel*. The sums of up to eight rows by two vectors stay in
registers (Zen 5: 490 of at most 510 GFLOP/s per thread).

Functions take addresses, counts and strides in bytes, so the pairs may be anywhere in memory: neighbors in a row, or
pairs of two rows, combined by :func:`interleave`.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding
from llvmlite import ir
from numba import types

from headway.kernels.float_bits import INT16_VECTOR
from headway.kernels.jit import jit
from headway.kernels.llvm import (
    CPU_FEATURES,
    FLOAT_VECTOR,
    INT16,
    INT32,
    INT64,
    INT_VECTOR,
    LANES,
    Builder,
    constant,
    intrinsic,
)

_VECTORS = 2  # number of adjacent vectors of sums
BLOCK = _VECTORS * LANES  # number of columns in a panel
PAIR_BYTES = 4
TILE_ROWS = 8
_MIN_LLVM_VERSION = 18  # the first version that supports bfloat


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bfloat type, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS, _BFLOATS = (ir.VectorType(_BFloat(), count) for count in (2 * LANES, LANES))
_VDPBF16PS = "llvm.x86.avx512bf16.dpbf16ps.512"
_ADDRESS, _COUNT = types.uintp, types.intp


def uses_bf16_dot() -> bool:
    """Return whether the processor has the bfloat16 dot product, but not the faster AMX, and LLVM supports bfloat."""
    compiles = llvmlite.binding.llvm_version_info[0] >= _MIN_LLVM_VERSION
    return compiles and LANES == 16 and "avx512bf16" in CPU_FEATURES and "amx-bf16" not in CPU_FEATURES


def emit_to_bfloat16(builder: Builder, vector: ir.Value) -> ir.Value:
    """Round each lane to the nearest bfloat16, and return the bits."""
    return builder.bitcast(builder.fptrunc(vector, _BFLOATS), INT16_VECTOR)


def _emit_tile(
    builder: Builder,
    rows: int,
    vectors: int,
    panel: ir.Value,
    pairs: ir.Value,
    x: ir.Value,
    row_stride: ir.Value,
    pair_stride: ir.Value,
    bias: ir.Value | None,
    out: ir.Value,
    out_stride: ir.Value,
    *,
    accumulate: bool = False,
) -> None:
    """Multiply ``rows`` rows by a panel of ``vectors`` vectors of columns.

    With a bias, the sums start at the bias and are stored as bfloat16. Without a bias, they start at zero and are
    stored as float32, or added to the stored sums if ``accumulate`` is True.
    """
    starts = [builder.offset(x, row, row_stride) for row in range(rows)]
    ends = [builder.offset(out, row, out_stride) for row in range(rows)]
    places = [(row, vector) for row in range(rows) for vector in range(vectors)]
    sums = {}
    for row, vector in places:
        if accumulate:
            builder.prefetch(builder.add(ends[row], INT64(4 * LANES * vector)))
        first = constant(FLOAT_VECTOR, 0.0) if bias is None else builder.read(bias, FLOAT_VECTOR, vector)
        sums[row, vector] = builder.local_variable(first)
    with builder.loop(pairs) as i:
        line, pair_offset = builder.mul(i, INT64(vectors)), builder.mul(i, pair_stride)
        columns = [builder.read(panel, INT_VECTOR, builder.add(line, INT64(vector))) for vector in range(vectors)]
        for row in range(rows):
            pair = builder.bitcast(
                builder.broadcast(builder.read(builder.add(starts[row], pair_offset), INT32)), _PAIRS
            )
            for vector, column in enumerate(columns):
                total = sums[row, vector]
                column = builder.bitcast(column, _PAIRS)
                builder.store(builder.call_llvm(_VDPBF16PS, FLOAT_VECTOR, builder.load(total), pair, column), total)
    for row, vector in places:
        total = builder.load(sums[row, vector])
        if bias is not None:
            total = emit_to_bfloat16(builder, total)
        elif accumulate:
            total = builder.fadd(total, builder.read(ends[row], FLOAT_VECTOR, vector))
        builder.write(total, ends[row], vector)


def _rows(vectors: int, *, has_bias: bool) -> Callable[[int, int, int, int, int, int, int, int, int], None]:
    """Return a function that multiplies rows by a panel, in tiles of eight rows and smaller tiles for the rest."""

    @intrinsic(types.void(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _COUNT, _COUNT))
    def multiply(
        builder: Builder,
        panel: ir.Value,
        pairs: ir.Value,
        x: ir.Value,
        row_stride: ir.Value,
        pair_stride: ir.Value,
        bias: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
        rows: ir.Value,
    ) -> None:
        start, done = bias if has_bias else None, builder.local_variable(INT64(0))
        for size in (TILE_ROWS, 4, 2, 1):
            with builder.loop(builder.sdiv(builder.sub(rows, builder.load(done)), INT64(size))):
                row = builder.load(done)
                first, place = builder.offset(x, row, row_stride), builder.offset(out, row, out_stride)
                arguments = (panel, pairs, first, row_stride, pair_stride, start, place, out_stride)
                _emit_tile(builder, size, vectors, *arguments)
                builder.store(builder.add(row, INT64(size)), done)

    return multiply


_multiply_rows, _multiply_rows_float32 = _rows(_VECTORS, has_bias=True), _rows(1, has_bias=False)


@intrinsic(types.void(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT))
def multiply_accumulate(
    builder: Builder,
    panel: ir.Value,
    pairs: ir.Value,
    x: ir.Value,
    row_stride: ir.Value,
    pair_stride: ir.Value,
    out: ir.Value,
    out_stride: ir.Value,
) -> None:
    """Add the product of TILE_ROWS rows and one panel of BLOCK columns to float32 sums."""
    arguments = (panel, pairs, x, row_stride, pair_stride, None, out, out_stride)
    _emit_tile(builder, TILE_ROWS, _VECTORS, *arguments, accumulate=True)


@jit
def multiply_rows(
    panel: int, pairs: int, x: int, row_stride: int, pair_stride: int, bias: int, out: int, out_stride: int, rows: int
) -> None:
    """Multiply rows by one panel of BLOCK columns, add a bias, and store the result as bfloat16.

    ``pairs`` and ``rows`` are counts. ``row_stride`` and ``out_stride`` are the number of bytes from one row to the
    next, and ``pair_stride`` is the number of bytes from one pair of a row to the next. The other arguments are
    addresses.
    """
    _multiply_rows(panel, pairs, x, row_stride, pair_stride, bias, out, out_stride, rows)


@jit
def multiply_rows_float32(
    panel: int, pairs: int, x: int, row_stride: int, out: int, out_stride: int, rows: int
) -> None:
    """Multiply rows, whose pairs are adjacent, by one panel of LANES columns, and store the result as float32."""
    _multiply_rows_float32(panel, pairs, x, row_stride, PAIR_BYTES, 0, out, out_stride, rows)


def _emit_interleave(builder: Builder, columns: int, even: ir.Value, odd: ir.Value, out: ir.Value) -> None:
    first, second = (builder.read(address, ir.VectorType(INT16, columns)) for address in (even, odd))
    for vector in range(columns // LANES):
        lanes = [lane for pair in range(vector * LANES, (vector + 1) * LANES) for lane in (pair, columns + pair)]
        builder.write(builder.shuffle(first, second, lanes), out, vector)


@intrinsic(types.void(_ADDRESS, _ADDRESS, _ADDRESS))
def interleave(builder: Builder, even: ir.Value, odd: ir.Value, out: ir.Value) -> None:
    """Store BLOCK columns of two rows as pairs."""
    _emit_interleave(builder, BLOCK, even, odd, out)


@intrinsic(types.void(_ADDRESS, _ADDRESS, _ADDRESS))
def interleave_lanes(builder: Builder, even: ir.Value, odd: ir.Value, out: ir.Value) -> None:
    """Store LANES columns of two rows as pairs."""
    _emit_interleave(builder, LANES, even, odd, out)
