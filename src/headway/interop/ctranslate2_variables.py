"""Read the variables of CTranslate2's model.bin, binary versions 1 to 6.

All numbers are little-endian. A string consists of its length including a final zero byte (uint16), and its bytes:

    version (uint32), since version 2: name and revision (uint32) of the specification
    number of variables (uint32), then for each: name, rank (uint8), dimensions (uint32 each), type (uint8), size
        (uint32), and the values. Before version 4, the type is the width of a value in bytes, and the size is in values
    since version 3: number of aliases (uint32), then for each: name, and name of the variable that it refers to

The values of 8-bit and 16-bit matrices have been multiplied by a scale, the variable NAME_scale: one number for each
row, or one for all rows. Variables are read when they are accessed, some rows at a time, so that the file is never in
memory as a whole.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from headway.errors import BundleError

SUPPORTED_VERSIONS = range(1, 7)
_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_TYPE_OF_WIDTH = {4: torch.float32, 2: torch.int16, 1: torch.int8}  # before version 4
_GLOBAL_INT16_SCALE = 1000.0  # scale of 16-bit matrices without a stored scale
_MAX_RANK = 8
_BYTES_AT_ONCE = 2**24


@dataclass(frozen=True)
class _Variable:
    """The data type, shape and file offset of a variable."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class StoredVariables:
    """The variables in a model.bin, keyed by name. A value is read when it is accessed, in its stored data type.

    Args:
        path: The path of the file.

    Attributes:
        path: The path of the file.
        version: The version of the binary format.
        specification: The name of the model's specification; empty in version 1.
        revision: The revision of the specification.
        accessed: The names of the variables that have been accessed.

    Raises:
        BundleError: The file is not a model.bin, is truncated, or has a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specification, self.revision = "", 1
        self.accessed: set[str] = set()
        self._variables: dict[str, _Variable] = {}
        self._aliases: dict[str, str] = {}
        try:
            with path.open("rb") as file:
                self._read_header(_Reader(path, file, path.stat().st_size))
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror}); expected CTranslate2's model.bin") from None

    def _read_header(self, reader: _Reader) -> None:
        self.version = reader.integer("I")
        if self.version not in SUPPORTED_VERSIONS:
            raise BundleError(
                f"{self.path}: binary version {self.version} of CTranslate2 is not supported; supported: "
                f"{SUPPORTED_VERSIONS[0]} to {SUPPORTED_VERSIONS[-1]}"
            )
        if self.version >= 2:
            self.specification, self.revision = reader.string(), reader.integer("I")
        for _ in range(reader.integer("I")):
            name = reader.string()
            variable = reader.variable(self.version)
            if name in self._variables:
                raise reader.error(f"the variable {name!r} occurs twice")
            self._variables[name] = variable
        if self.version >= 3:
            for _ in range(reader.integer("I")):
                alias, name = reader.string(), reader.string()
                if name not in self._variables:
                    raise reader.error(f"the alias {alias!r} stands for {name!r}, which does not exist")
                self._aliases.setdefault(alias, name)
                if f"{name}_scale" in self._variables:
                    self._aliases.setdefault(f"{alias}_scale", f"{name}_scale")
        if reader.remaining:
            raise reader.error(f"{reader.remaining:,} bytes follow the last entry")

    def rename(self, new_names: Mapping[str, str]) -> None:
        """Rename variables, for files of an older specification. Keys are the stored names."""
        self._variables = {new_names.get(name, name): variable for name, variable in self._variables.items()}

    @property
    def names(self) -> list[str]:
        """All names, including aliases."""
        return sorted({*self._variables, *self._aliases})

    def resolve(self, name: str) -> str:
        """Return the name under which a variable is stored. It differs from ``name`` if ``name`` is an alias."""
        return name if name in self._variables else self._aliases.get(name, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable without reading it."""
        return self._variable(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the stored data type of a variable."""
        return self._variable(name).dtype

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name, 0, None)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the rows start .. stop - 1 of a variable in float32. Integers are divided by their scales."""
        values = self._read(name, start, stop)
        if values.dtype.is_floating_point:
            return values.float()
        scale = self._scale(name, start, start + len(values))
        return values.float() / scale.view(-1, *[1] * (values.dim() - 1))

    def copy_rows(self, name: str, target: Tensor, start: int = 0) -> None:
        """Copy the rows beginning with row ``start`` to ``target``, some at a time."""
        variable = self._variable(name)
        width = math.prod(variable.shape[1:]) * 4
        step = max(1, _BYTES_AT_ONCE // max(width, 1))
        for first in range(0, len(target), step):
            last = min(first + step, len(target))
            target[first:last].copy_(self.rows(name, start + first, start + last))

    def scalar(self, name: str) -> float | int | None:
        """Return the only value of a variable, or None if the variable does not exist."""
        if name not in self:
            return None
        if math.prod(self.shape(name)) != 1:
            raise BundleError(f"{self.path}: {name} has the shape {list(self.shape(name))}; expected one number")
        value: float | int = self[name].item()
        return value

    def text(self, name: str) -> str | None:
        """Return the text in a byte variable, or None if the variable does not exist."""
        if name not in self:
            return None
        return bytes(self[name].flatten().to(torch.int16).remainder(256).tolist()).decode("utf-8", errors="replace")

    def __contains__(self, name: object) -> bool:
        return name in self._variables or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def _variable(self, name: str) -> _Variable:
        stored = self.resolve(name)
        if stored not in self._variables:
            raise BundleError(f"{self.path}: the variable {name!r} is missing, but models with these options need it")
        self.accessed |= {name, stored}
        return self._variables[stored]

    def _scale(self, name: str, start: int, stop: int) -> Tensor:
        variable, scale_name = self._variable(name), f"{self.resolve(name)}_scale"
        if scale_name not in self:
            if variable.dtype == torch.int16:
                return torch.tensor([_GLOBAL_INT16_SCALE])
            raise BundleError(f"{self.path}: {name} consists of integers but has no {scale_name}")
        scale = self[scale_name].float().flatten()
        if len(scale) not in (1, variable.shape[0] if variable.shape else 1):
            raise BundleError(
                f"{self.path}: {scale_name} has {len(scale):,} numbers; expected one, or one for each row of {name}"
            )
        if not (torch.isfinite(scale).all() and (scale > 0).all()):
            raise BundleError(f"{self.path}: damaged ({scale_name} contains numbers that are not positive)")
        return scale if len(scale) == 1 else scale[start:stop]

    def _read(self, name: str, start: int, stop: int | None) -> Tensor:
        variable = self._variable(name)
        shape, width = variable.shape, variable.dtype.itemsize
        offset = variable.offset
        if shape:
            row = math.prod(shape[1:])
            stop = shape[0] if stop is None else stop
            shape, offset = (stop - start, *shape[1:]), offset + start * row * width
        count = math.prod(shape)
        data = bytearray(count * width)
        with self.path.open("rb") as file:
            file.seek(offset)
            if file.readinto(data) != len(data):
                raise BundleError(f"{self.path}: truncated while it was read; copy it again from its source")
        if not count:
            return torch.empty(shape, dtype=variable.dtype)
        return torch.frombuffer(data, dtype=variable.dtype).view(shape)


class _Reader:
    """Reads the numbers and strings of a file, and skips the values of variables."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self._path, self._file, self._size = path, file, size

    @property
    def remaining(self) -> int:
        return self._size - self._file.tell()

    def error(self, problem: str) -> BundleError:
        return BundleError(f"{self._path}: damaged, or not CTranslate2's model.bin ({problem}); copy it again")

    def _bytes(self, count: int) -> bytes:
        if count > self.remaining:
            raise self.error(f"truncated: {count:,} bytes expected at byte {self._file.tell():,}")
        return self._file.read(count)

    def integer(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self._bytes(struct.calcsize(code)))
        return int(value)

    def string(self) -> str:
        data = self._bytes(self.integer("H"))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("a name is not UTF-8") from None
        if not text.endswith("\0"):
            raise self.error("a name does not end with a zero byte")
        return text[:-1]

    def variable(self, version: int) -> _Variable:
        rank = self.integer("B")
        if rank > _MAX_RANK:
            raise self.error(f"a variable has {rank} dimensions")
        shape = struct.unpack(f"<{rank}I", self._bytes(4 * rank))
        kind, size = self.integer("B"), self.integer("I")
        if version >= 4:
            dtype = _TYPES[kind] if kind < len(_TYPES) else None
        else:
            dtype, size = _TYPE_OF_WIDTH.get(kind), size * kind
        if dtype is None:
            raise self.error(f"the type {kind} is unknown")
        if math.prod(shape) * dtype.itemsize != size:
            raise self.error(f"a variable of the shape {list(shape)} has {size:,} bytes")
        offset = self._file.tell()
        if size > self.remaining:
            raise self.error(f"truncated: {size:,} bytes expected at byte {offset:,}")
        self._file.seek(size, 1)
        return _Variable(dtype, shape, offset)
