"""Functions written as LLVM instructions, which compiled kernels call like any other function.

Most kernels are Python functions that Numba compiles. If a loop must use specific vector instructions and registers, a
Python function emits these instructions instead (:func:`intrinsic`). Such functions take addresses, counts and numbers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import extending

from headway.kernels.processor import cpu_features

BYTE, INT16, INT32, INT64, FLOAT = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()
CPU_FEATURES = cpu_features()
LANES = 16 if "avx512bw" in CPU_FEATURES else 8  # number of 32-bit numbers in a vector
CACHE_LINE = 64  # size in bytes
TILE_ROWS, TILE_BYTES = 16, 64  # size of an AMX tile register
FLOAT_VECTOR, INT_VECTOR = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)


def intrinsic(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that emits instructions, so that compiled code can call it.

    The decorated function takes a :class:`Builder` and the arguments as LLVM values, and returns the result's value, or
    None. ``signature`` is the signature in Numba's types, or a function that maps the argument types to the signature.
    """

    def decorate(emit: Callable[..., Any]) -> Callable[..., Any]:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            body = Builder(builder.block)
            result = emit(body, *arguments)
            builder.position_at_end(body.block)
            return ir.Constant(BYTE.as_pointer(), None) if result is None else result

        @functools.wraps(emit)
        def typing(context: Any, *arguments: Any) -> Any:
            return signature(*arguments) if callable(signature) else signature, generate

        function: Callable[..., Any] = extending.intrinsic(typing)
        return function

    return decorate


def constant(kind: ir.Type, value: int | float) -> ir.Value:
    """Return a constant of type ``kind``. If ``kind`` is a vector, all lanes have this value."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def llvm_function(builder: ir.IRBuilder, name: str, result_type: ir.Type, *arguments: ir.Type) -> Any:
    """Return the declaration of an LLVM function or processor instruction."""
    declared = builder.module.globals.get(name)
    if declared is None:
        return ir.Function(builder.module, ir.FunctionType(result_type, arguments), name)
    return declared


class Builder(ir.IRBuilder):  # type: ignore[misc]  # llvmlite has no types
    """llvmlite's instruction builder, extended by the operations that kernels use. Addresses are integers."""

    def read(self, address: ir.Value, kind: ir.Type, index: ir.Value | int = 0) -> ir.Value:
        """Return element ``index`` of the array of ``kind`` at ``address``."""
        return self.load(self._pointer(address, kind, index), align=1)

    def lane_mask(self, array_length: ir.Value, index: ir.Value) -> ir.Value:
        """Return a mask of the lanes of vector ``index`` that lie inside an array of ``array_length`` elements."""
        left = self.trunc(self.sub(array_length, self.mul(index, INT64(LANES))), INT32)
        return self.icmp_signed("<", ir.Constant(INT_VECTOR, list(range(LANES))), self.broadcast(left))

    def read_masked(self, address: ir.Value, index: ir.Value, array_length: ir.Value) -> ir.Value:
        """Return vector ``index`` of an array of ``array_length`` float32 numbers, with zeros beyond its end."""
        pointer, zeros = self._pointer(address, FLOAT_VECTOR, index), constant(FLOAT_VECTOR, 0.0)
        name, mask = f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32", self.lane_mask(array_length, index)
        return self.call_llvm(name, FLOAT_VECTOR, pointer, INT32(1), mask, zeros)

    def write_masked(self, value: ir.Value, address: ir.Value, index: ir.Value, array_length: ir.Value) -> None:
        """Store ``value`` as vector ``index`` of an array of ``array_length`` float32 numbers, except past its end."""
        pointer, mask = self._pointer(address, FLOAT_VECTOR, index), self.lane_mask(array_length, index)
        self.call_llvm(f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32", ir.VoidType(), value, pointer, INT32(1), mask)

    def write(self, value: ir.Value, address: ir.Value, index: ir.Value | int = 0) -> None:
        """Store ``value`` as element ``index`` of the array at ``address``."""
        self.store(value, self._pointer(address, value.type, index), align=1)

    def _pointer(self, address: ir.Value, kind: ir.Type, index: ir.Value | int) -> ir.Value:
        index = INT64(index) if isinstance(index, int) else index
        return self.gep(self.inttoptr(address, kind.as_pointer()), [index])

    def offset(self, start: ir.Value, index: ir.Value | int, stride: ir.Value | int) -> ir.Value:
        """Return start + index * stride, all 64-bit integers."""
        index, stride = (INT64(x) if isinstance(x, int) else x for x in (index, stride))
        return self.add(start, self.mul(index, stride))

    @contextlib.contextmanager
    def loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """Emit the instructions inside this context as a loop with ``count`` iterations. Yields the loop index."""
        before, test = self.block, self.append_basic_block("loop.test")
        body, end = self.append_basic_block("loop.body"), self.append_basic_block("loop.end")
        self.branch(test)
        self.position_at_end(test)
        index = self.phi(count.type)
        index.add_incoming(count.type(0), before)
        self.cbranch(self.icmp_signed("<", index, count), body, end)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, count.type(1), flags=["nsw"]), self.block)
        self.branch(test)
        self.position_at_end(end)

    def local_variable(self, initial: ir.Value) -> ir.Value:
        """Return a pointer to a new local variable, which LLVM keeps in a register."""
        with self.goto_entry_block():
            pointer = self.alloca(initial.type)
        self.store(initial, pointer)
        return pointer

    def add_to(self, variable: ir.Value, value: ir.Value) -> None:
        """Add a floating-point value to a variable."""
        self.store(self.fadd(self.load(variable), value), variable)

    def call_llvm(self, name: str, result_type: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call an LLVM function or processor instruction."""
        function = llvm_function(self, name, result_type, *(argument.type for argument in arguments))
        return self.call(function, list(arguments))

    def call_float(self, name: str, *arguments: ir.Value) -> ir.Value:
        """Call the LLVM function ``name`` with float32 numbers or vectors, depending on the arguments."""
        kind = arguments[0].type
        return self.call_llvm(f"llvm.{name}.{'f32' if kind == FLOAT else f'v{LANES}f32'}", kind, *arguments)

    def for_elements(self, count: ir.Value, emit: Callable[[ir.Type, ir.Value], None]) -> None:
        """Emit a loop over the vectors of an array of ``count`` numbers, and a loop over the remaining numbers.

        ``emit`` receives the type (a vector or one float32) and the index of the vector or number.
        """
        vectors = self.udiv(count, INT64(LANES))
        whole = self.mul(vectors, INT64(LANES))
        with self.loop(vectors) as index:
            emit(FLOAT_VECTOR, index)
        with self.loop(self.sub(count, whole)) as left:
            emit(FLOAT, self.add(whole, left))

    def broadcast(self, value: ir.Value) -> ir.Value:
        """Return a vector with ``value`` in all lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        return self.shuffle_vector(self.insert_element(undefined, value, INT32(0)), undefined, constant(INT_VECTOR, 0))

    def shuffle(self, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
        """Return a vector of the given lanes of ``a`` and ``b``. The indices of ``b`` follow the indices of ``a``."""
        return self.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(lanes)), lanes))

    def sum_lanes(self, vector: ir.Value) -> ir.Value:
        """Return the sum of all lanes. The two halves are added, then the halves of the result, and so on."""
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            upper = [lanes + lane if lane < lanes else lane for lane in range(LANES)]
            vector = self.fadd(vector, self.shuffle(vector, ir.Constant(vector.type, ir.Undefined), upper))
        return self.extract_element(vector, INT32(0))

    def allocate(self, size: int) -> ir.Value:
        """Return the address of ``size`` uninitialized bytes on the stack, aligned to a cache line."""
        with self.goto_entry_block():  # in a loop, an allocation would be repeated
            pointer = self.alloca(ir.ArrayType(BYTE, size))
        pointer.align = CACHE_LINE
        return self.ptrtoint(pointer, INT64)

    def configure_tiles(self) -> None:
        """Configure all AMX tile registers with their full size: TILE_ROWS rows of TILE_BYTES bytes each."""
        palette, tiles, unused = 1, 8, 8  # the layout that the instruction ldtilecfg expects
        row_bytes = [byte for _ in range(tiles) for byte in TILE_BYTES.to_bytes(2, "little")]
        layout = [palette, *(0,) * 15, *row_bytes, *(0,) * 2 * unused, *(TILE_ROWS,) * tiles, *(0,) * unused]
        place = self.allocate(len(layout))
        self.write(ir.Constant(ir.VectorType(BYTE, len(layout)), layout), place)
        self.call_llvm("llvm.x86.ldtilecfg", ir.VoidType(), self.inttoptr(place, BYTE.as_pointer()))

    def load_tile(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Load the rows of a tile, which are ``stride`` bytes apart. With a stride of 0, all rows are equal."""
        pointer = self.inttoptr(address, BYTE.as_pointer())
        self.call_llvm("llvm.x86.tileloadd64", ir.VoidType(), BYTE(tile), pointer, stride)

    def store_tile(self, tile: int, address: ir.Value, stride: ir.Value) -> None:
        """Store the rows of a tile ``stride`` bytes apart."""
        pointer = self.inttoptr(address, BYTE.as_pointer())
        self.call_llvm("llvm.x86.tilestored64", ir.VoidType(), BYTE(tile), pointer, stride)

    def multiply_tiles(self, sums: int, unsigned: int, signed: int) -> None:
        """Add the products of two tiles of bytes to a tile of 32-bit sums.

        Row r of ``unsigned`` contains the inputs of output row r. Row k of ``signed`` contains weights 4 k to 4 k + 3
        of each output column.
        """
        self.call_llvm("llvm.x86.tdpbusd", ir.VoidType(), BYTE(sums), BYTE(unsigned), BYTE(signed))

    def release_tiles(self) -> None:
        """Reset the tile registers, so that the operating system does not save them when it switches threads."""
        self.call_llvm("llvm.x86.tilerelease", ir.VoidType())

    def prefetch(self, address: ir.Value) -> None:
        """Load the cache line at ``address`` into the second-level cache. Any address is allowed."""
        pointer = self.inttoptr(address, BYTE.as_pointer())
        self.call_llvm("llvm.prefetch.p0i8", ir.VoidType(), pointer, INT32(0), INT32(2), INT32(1))

    def prefetch_lines(self, address: ir.Value, count: ir.Value) -> None:
        """Load ``count`` cache lines, starting at ``address``, into the second-level cache. Any address is allowed."""
        with self.loop(count) as line:
            self.prefetch(self.offset(address, line, CACHE_LINE))
