"""The correspondence between tensors of a `transformers` folder and Headway's weights, and copying one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.errors import BundleError
from headway.interop.huggingface.checkpoint import StoredTensors
from headway.interop.vocabulary_order import VocabularyOrder
from headway.text.base import NUM_SPECIAL

_ROWS_AT_ONCE = 4096  # rows of an embedding to copy at a time, so that memory never holds two copies


@dataclass(frozen=True)
class TensorMap:
    """The correspondence between one tensor of a family and one or several of Headway's weights.

    Attributes:
        theirs: Name of the family's tensor.
        ours: Names of Headway's weights.
        to_ours: Divides the family's tensor into Headway's weights.
        to_theirs: The inverse of ``to_ours``.
    """

    theirs: str
    ours: tuple[str, ...]
    to_ours: Callable[[Tensor], Sequence[Tensor]] = lambda theirs: [theirs]
    to_theirs: Callable[[Sequence[Tensor]], Tensor] = lambda ours: ours[0]


def rotated_order(width: int, fraction: float) -> Int[Tensor, " K"]:
    """Return, for each unit of a head in Headway's order, the family's index: units i and i + K/2 become neighbors."""
    rotated = round(width * fraction)
    return torch.cat([torch.arange(rotated).view(2, -1).T.flatten(), torch.arange(rotated, width)])


def permute_heads(order: Int[Tensor, " K"], weight: Float[Tensor, "N *b"]) -> Float[Tensor, "N *b"]:
    """Return ``weight`` with the units of each head, in its rows, in ``order``."""
    return torch.unflatten(weight, 0, (-1, len(order)))[:, order].flatten(0, 1)


def plain_maps(names: Mapping[str, str]) -> Iterator[TensorMap]:
    """Yield the maps of modules that both sides store in the same way. ``names`` maps the family's modules to
    Headway's.
    """
    for theirs, ours in names.items():
        for kind in ("weight", "bias"):
            yield TensorMap(f"{theirs}.{kind}", (f"{ours}.{kind}",))


def copy_tensors(
    tensors: StoredTensors,
    weights: Mapping[str, Tensor],
    maps: Iterable[TensorMap],
    tables: Mapping[str, str],
    vocabulary: VocabularyOrder,
    ignored: re.Pattern[str],
    title: str,
) -> None:
    """Copy tensors to a model's weights, with only one tensor in memory at a time.

    Args:
        tensors: The tensors of the folder.
        weights: The model's weights by name, which are changed.
        maps: The correspondence of the tensors. Weights that the model does not have are skipped.
        tables: Tensors with a row for each token, and the names of Headway's weights.
        vocabulary: The order of the rows of ``tables`` in Headway.
        ignored: Names of tensors that are not needed.
        title: The family's name in messages.

    Raises:
        BundleError: A tensor is missing, unknown, or has another shape.
    """
    present = [tensor_map for tensor_map in maps if all(name in weights for name in tensor_map.ours)]
    needed = {tensor_map.theirs for tensor_map in present} | tables.keys()
    if strange := sorted(name for name in tensors if name not in needed and not ignored.fullmatch(name)):
        raise BundleError(
            f"{tensors.path}: unknown tensor {strange[0]!r} ({len(strange)} in all), which {title} with this "
            "config.json does not have"
        )
    if missing := sorted(needed - tensors.keys()):
        raise BundleError(f"{tensors.path}: tensor {missing[0]!r} is missing ({len(missing)} in all)")
    with torch.no_grad():
        for theirs, ours in tables.items():
            _check_shape(tensors, theirs, (max(vocabulary.order) + 1, *weights[ours].shape[1:]))
            copy_table(partial(tensors.rows, theirs), vocabulary.order, weights[ours])
        for tensor_map in present:
            targets = [weights[name] for name in tensor_map.ours]
            # Expanded scalars take no memory. Tensors on the meta device would import sympy, which takes 25 MB.
            shapes = [torch.zeros((), dtype=torch.float16).expand(target.shape) for target in targets]
            _check_shape(tensors, tensor_map.theirs, tuple(tensor_map.to_theirs(shapes).shape))
            for target, source in zip(targets, tensor_map.to_ours(tensors[tensor_map.theirs]), strict=True):
                target.copy_(source)


def copy_table(read_rows: Callable[[slice], Tensor], order: Sequence[int], target: Tensor) -> None:
    """Copy the rows ``order`` of a table to the rows of ``target``, some thousand at a time.

    ``read_rows`` returns rows of the table. Except for the special tokens, the order is ascending.
    """
    starts = sorted({*range(NUM_SPECIAL), *range(NUM_SPECIAL, len(order), _ROWS_AT_ONCE), len(order)})
    for start, end in pairwise(starts):
        first = order[start]
        read = read_rows(slice(first, order[end - 1] + 1))
        target[start:end].copy_(read[[old - first for old in order[start:end]]])


def _check_shape(tensors: StoredTensors, name: str, expected: tuple[int, ...]) -> None:
    if tensors.shape(name) != expected:
        raise BundleError(
            f"{tensors.path}: tensor {name!r} has shape {list(tensors.shape(name))}; config.json requires "
            f"{list(expected)}"
        )
