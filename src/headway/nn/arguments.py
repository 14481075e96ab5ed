"""Checks of tensor shapes and types, with helpful errors for users who call layers and models directly.

PyTorch's message about a matrix product ("mat1 and mat2 shapes cannot be multiplied") names neither the argument nor
the expected shape, and some wrong masks broadcast to a wrong result without any message. The functions in this module
read shapes and types, but not values, so that they do not synchronize with a GPU. They do nothing while
``torch.compile``, ``torch.export`` or ``torch.jit.trace`` runs the code, because sizes may then be symbolic.

A size is a number, or a word for a dimension of any size.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import ShapeError

Size = int | str


def check_floats(name: str, x: Tensor, *sizes: Size | EllipsisType) -> None:
    """Raise :class:`ShapeError` unless ``x`` is floating-point and has these sizes. ``...`` matches any dimensions."""
    if not is_traced() and not (isinstance(x, Tensor) and x.is_floating_point() and _fits(x.shape, sizes)):
        raise ShapeError(
            describe_value(x), where=name, accepted=f"floating-point numbers of the shape {format_sizes(sizes)}"
        )


def check_integers(name: str, x: Tensor, *sizes: Size | EllipsisType) -> None:
    """Raise :class:`ShapeError` unless ``x`` contains 32-bit or 64-bit integers (token ids) and has these sizes."""
    if not is_traced() and not (
        isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) and _fits(x.shape, sizes)
    ):
        raise ShapeError(describe_value(x), where=name, accepted=f"integers of the shape {format_sizes(sizes)}")


def input_width(layer: nn.Module) -> Size:
    """Return the input width that a linear layer expects, or a word if a replacement layer may expect any width."""
    return layer.in_features if isinstance(layer, nn.Linear) else "width"


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raise :class:`ShapeError` if some ``ids`` are not in 0 .. ``count`` - 1. Call this if an operation has failed."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ShapeError(f"contains the number {wrong}", where=name, accepted=f"0 to {count - 1}")


def is_traced() -> bool:
    """Return whether the code is being compiled, exported or traced, in which case checks are skipped."""
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


def format_sizes(sizes: tuple[Size | EllipsisType, ...]) -> str:
    """Format sizes as a shape."""
    shown = ", ".join("..." if size is ... else str(size) for size in sizes)
    return f"({shown}{',' if len(sizes) == 1 else ''})"


def describe_value(value: Any) -> str:
    """Describe an argument: a tensor's data type and shape, or the type of another object."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, not a tensor"
    return f"a tensor of {str(value.dtype).removeprefix('torch.')} with the shape {format_sizes(tuple(value.shape))}"
