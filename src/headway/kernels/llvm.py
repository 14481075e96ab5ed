"""What functions written as LLVM's instructions have in common.

Most kernels are Python that Numba compiles. Where a loop must be made of certain vector instructions, in certain
registers, a function emits them instead (Numba's ``intrinsic``), and compiled code calls it like any other. Such
functions take addresses and numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import extending
from numba.core import cgutils as untyped_cgutils

from headway.kernels.cpu_features import cpu_features

__all__ = [
    "BYTE",
    "CACHE_LINE",
    "FEATURES",
    "FLOAT",
    "FLOAT_VECTOR",
    "INT32",
    "INT64",
    "INT_VECTOR",
    "LANES",
    "alloca",
    "broadcast",
    "constant",
    "for_range",
    "intrinsic",
    "llvm_function",
    "load",
    "prefetch",
    "store",
    "sum_lanes",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_cgutils: Any = untyped_cgutils

BYTE, INT32, INT64, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
FEATURES = cpu_features()
LANES = 16 if "avx512bw" in FEATURES else 8  # of 32 bits, in a vector
CACHE_LINE = 64  # bytes that come into a cache together
FLOAT_VECTOR, INT_VECTOR = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)


def intrinsic(typing: Callable[..., Any]) -> Callable[..., Any]:
    """The function that compiled code calls; ``typing`` gives its signature and what emits its instructions."""
    return cast(Callable[..., Any], extending.intrinsic(inspect.unwrap(typing)))  # without the type checks of tests


def constant(kind: ir.Type, value: int | float) -> ir.Value:
    """A number of this kind, or a vector of it in all lanes."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def llvm_function(builder: ir.IRBuilder, name: str, result: ir.Type, *taken: ir.Type) -> Any:
    """One of LLVM's or the processor's own functions."""
    return _cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, taken), name)


def for_range(builder: ir.IRBuilder, count: ir.Value) -> Any:
    """A loop: a context manager whose value has the ``index``."""
    return _cgutils.for_range(builder, count)


def alloca(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """A place for a value that changes in loops; LLVM makes it a register."""
    return _cgutils.alloca_once(builder, kind)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, index: ir.Value) -> ir.Value:
    """The value at ``index`` of those that lie from ``address`` on."""
    return builder.load(builder.gep(builder.inttoptr(address, kind.as_pointer()), [index]), align=1)


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, index: ir.Value) -> None:
    """Put it at ``index`` of the values of its kind that lie from ``address`` on."""
    builder.store(value, builder.gep(builder.inttoptr(address, value.type.as_pointer()), [index]), align=1)


def broadcast(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A vector whose lanes are all ``value``."""
    alone = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    lane = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(builder.insert_element(alone, value, INT32(0)), alone, lane)


def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Have what is there, with all of its cache line, brought into the second-level cache; it may be any address."""
    prefetch = llvm_function(builder, "llvm.prefetch.p0i8", ir.VoidType(), BYTE.as_pointer(), INT32, INT32, INT32)
    builder.call(prefetch, [builder.inttoptr(address, BYTE.as_pointer()), INT32(0), INT32(2), INT32(1)])


def sum_lanes(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of a vector's lanes: of its halves, then of theirs."""
    lanes = vector.type.count
    nothing = ir.Constant(vector.type, ir.Undefined)
    while lanes > 1:
        lanes //= 2
        upper = [lanes + lane if lane < lanes else lane for lane in range(vector.type.count)]
        order = ir.Constant(ir.VectorType(INT32, vector.type.count), upper)
        vector = builder.fadd(vector, builder.shuffle_vector(vector, nothing, order))
    return builder.extract_element(vector, INT32(0))
