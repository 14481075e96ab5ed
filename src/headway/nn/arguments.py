"""Errors for tensors of the wrong shape or type, where layers and models are called by hand.

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
from headway.nn.masks import Causal, DocumentMask

Size = int | str

_MASK_HINT = (
    'True means "may attend": mask.bool() converts a mask of 1 and 0, and mask == 0 one of 0 and minus infinity'
)


def check_floats(name: str, x: Tensor, *sizes: Size | EllipsisType) -> None:
    """Raise :class:`ShapeError` unless ``x`` has floating-point numbers and these sizes. ``...`` is any dimensions."""
    if not _is_traced() and not (isinstance(x, Tensor) and x.is_floating_point() and _fits(x.shape, sizes)):
        raise ShapeError(_described(x), where=name, accepted=f"floating-point numbers of the shape {_shown(sizes)}")


def check_integers(name: str, x: Tensor, *sizes: Size) -> None:
    """Raise :class:`ShapeError` unless ``x`` has integers of 32 or 64 bits, such as token ids, and these sizes."""
    if not _is_traced() and not (
        isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) and _fits(x.shape, sizes)
    ):
        raise ShapeError(_described(x), where=name, accepted=f"integers of the shape {_shown(sizes)}")


def check_mask(name: str, mask: Any, *sizes: int) -> None:
    """Raise :class:`ShapeError` unless ``mask`` is None, or boolean and broadcasts to these sizes.

    The last two sizes are the numbers of queries and of keys if ``mask`` is a :class:`~headway.nn.masks.Causal` or a
    :class:`~headway.nn.masks.DocumentMask`, which must be equal.
    """
    if mask is None or _is_traced():
        return
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        shape = mask.shape
        if not _broadcasts(shape, sizes):
            hint = None
            if len(sizes) == 3 and tuple(shape) == (sizes[0], sizes[2]):
                hint = "mask.unsqueeze(1) lets all queries of a sequence attend to the same keys"
            elif len(shape) == len(sizes) + 1:
                hint = "one mask serves all heads, and has no dimension for them"
            accepted = f"a shape that broadcasts to {_shown(sizes)}"
            raise ShapeError(_described(mask), where=name, accepted=accepted, hint=hint)
    elif isinstance(mask, Causal | DocumentMask):
        positions = sizes[-2] if isinstance(mask, Causal) else mask.first_keys.size(-1)
        if not positions == sizes[-2] == sizes[-1]:
            what = f"a mask of {positions} positions for {sizes[-2]} queries and {sizes[-1]} keys"
            raise ShapeError(what, where=name, accepted="one position for each query and key of one sequence")
    else:
        raise ShapeError(_described(mask), where=name, accepted="booleans", hint=_MASK_HINT)


def input_width(layer: nn.Module) -> Size:
    """Return the width that a linear layer expects. A layer of another class in its place may expect any."""
    return layer.in_features if isinstance(layer, nn.Linear) else "width"


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raise :class:`ShapeError` if ``ids``, with which an operation has failed, are not all in 0 .. ``count`` - 1."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ShapeError(f"has the number {wrong}", where=name, accepted=f"0 to {count - 1}")


def _is_traced() -> bool:
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


def _broadcasts(shape: torch.Size, sizes: tuple[int, ...]) -> bool:
    if len(shape) > len(sizes):
        return False
    for size, most in zip(reversed(shape), reversed(sizes), strict=False):  # noqa: SIM110
        if size != most and size != 1:
            return False
    return True


def _shown(sizes: tuple[Size | EllipsisType, ...]) -> str:
    shown = ", ".join("..." if size is ... else str(size) for size in sizes)
    return f"({shown}{',' if len(sizes) == 1 else ''})"


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}, not a tensor"
    return f"a tensor of {str(value.dtype).removeprefix('torch.')} with the shape {_shown(tuple(value.shape))}"
