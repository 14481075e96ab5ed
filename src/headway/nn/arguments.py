"""Errors for tensors of the wrong shape or type, for users who call layers and models directly.

PyTorch's message about a matrix product ("mat1 and mat2 shapes cannot be multiplied") names neither the argument nor
what the layer expects, and some wrong masks broadcast to a wrong result without any message. The functions here read
shapes and types, never values, so that a GPU does not wait for them. They do nothing while ``torch.compile``,
``torch.export`` or ``torch.jit.trace`` runs the code, because sizes may then be symbols.

Sizes are numbers, or words for a dimension of any size.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import ShapeError

Size = int | str


def check_floats(name: str, x: Tensor, *sizes: Size | EllipsisType) -> None:
    """Raise :class:`ShapeError` unless ``x`` has floating-point numbers and these sizes. ``...`` is any dimensions."""
    if not is_traced() and not (isinstance(x, Tensor) and x.is_floating_point() and _fits(x.shape, sizes)):
        raise ShapeError(described(x), where=name, accepted=f"floating-point numbers of the shape {shown_sizes(sizes)}")


def check_integers(name: str, x: Tensor, *sizes: Size | EllipsisType) -> None:
    """Raise :class:`ShapeError` unless ``x`` has integers of 32 or 64 bits, such as token ids, and these sizes."""
    if not is_traced() and not (
        isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) and _fits(x.shape, sizes)
    ):
        raise ShapeError(described(x), where=name, accepted=f"integers of the shape {shown_sizes(sizes)}")


def input_width(layer: nn.Module) -> Size:
    """Return the width that a linear layer expects. A replacement of another class may expect any number."""
    return layer.in_features if isinstance(layer, nn.Linear) else "width"


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raise :class:`ShapeError` if ``ids``, with which an operation has failed, are not all in 0 .. ``count`` - 1."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ShapeError(f"has the number {wrong}", where=name, accepted=f"0 to {count - 1}")


def is_traced() -> bool:
    """Return whether code is compiled, exported or traced, so that nothing must be checked."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def _fits(shape: torch.Size, sizes: tuple[Size | EllipsisType, ...]) -> bool:
    if sizes[0] is ...:
        sizes = sizes[1:]
        shape = shape[len(shape) - len(sizes) :] if len(shape) >= len(sizes) else shape
    if len(shape) != len(sizes):
        return False
    for size, expected in zip(shape, sizes, strict=True):
        if size != expected and not isinstance(expected, str):
            return False
    return True


def shown_sizes(sizes: tuple[Size | EllipsisType, ...]) -> str:
    """Return sizes in the form of a shape."""
    shown = ", ".join("..." if size is ... else str(size) for size in sizes)
    return f"({shown}{',' if len(sizes) == 1 else ''})"


def described(value: Any) -> str:
    """Describe what was given: a tensor, or something else."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, not a tensor"
    return f"a tensor of {str(value.dtype).removeprefix('torch.')} with the shape {shown_sizes(tuple(value.shape))}"
