"""Map the tensors of a `transformers` folder to Headway's weights, and copy them one by one."""

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

_ROWS_AT_ONCE = 4096  # number of embedding rows to copy at a time, so that there are never two copies in memory


@dataclass(frozen=True)
class TensorMap:
    """The correspondence between one tensor of a family and one or several of Headway's weights.

    Attributes:
        family_name: Name of the family's tensor.
        headway_names: Names of Headway's weights.
        to_headway: Function that splits the family's tensor into Headway's weights.
        to_family: The inverse function of ``to_headway``.
    """

    family_name: str
    headway_names: tuple[str, ...]
    to_headway: Callable[[Tensor], Sequence[Tensor]] = lambda theirs: [theirs]
    to_family: Callable[[Sequence[Tensor]], Tensor] = lambda ours: ours[0]


def rotary_unit_order(width: int, fraction: float) -> Int[Tensor, " K"]:
    """Return the family's index of each unit of a head in Headway's order, in which i and i + K/2 are neighbors."""
    rotated = round(width * fraction)
    return torch.cat([torch.arange(rotated).view(2, -1).T.flatten(), torch.arange(rotated, width)])


def permute_heads(order: Int[Tensor, " K"], weight: Float[Tensor, "N *b"]) -> Float[Tensor, "N *b"]:
    """Return ``weight`` with the rows of each head permuted by ``order``."""
    return torch.unflatten(weight, 0, (-1, len(order)))[:, order].flatten(0, 1)


def unchanged_maps(names: Mapping[str, str]) -> Iterator[TensorMap]:
    """Yield the maps of modules that are stored in the same way by both sides. ``names`` maps the family's modules to
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
        weights: The model's weights by name, which are overwritten.
        maps: The maps of the tensors. Weights that the model does not have are skipped.
        tables: Maps the names of tensors with a row for each token to the names of Headway's weights.
        vocabulary: The order of the rows of ``tables`` in Headway.
        ignored: Pattern of the names of tensors that are not needed.
        title: The family's name for messages.

    Raises:
        BundleError: A tensor is missing, unknown, or has the wrong shape.
    """
    present = [tensor_map for tensor_map in maps if all(name in weights for name in tensor_map.headway_names)]
    needed = {tensor_map.family_name for tensor_map in present} | tables.keys()
    if strange := sorted(name for name in tensors if name not in needed and not ignored.fullmatch(name)):
        raise BundleError(
            f"{tensors.path}: unknown tensor {strange[0]!r} ({len(strange)} in total), which {title} with this "
            "config.json does not have"
        )
    if missing := sorted(needed - tensors.keys()):
        raise BundleError(f"{tensors.path}: tensor {missing[0]!r} is missing ({len(missing)} in total)")
    with torch.no_grad():
        for theirs, ours in tables.items():
            _check_shape(tensors, theirs, (max(vocabulary.order) + 1, *weights[ours].shape[1:]))
            copy_table_rows(partial(tensors.rows, theirs), vocabulary.order, weights[ours])
        for tensor_map in present:
            targets = [weights[name] for name in tensor_map.headway_names]
            # Expanded scalars need no memory. Tensors on the meta device would import sympy, which needs 25 MB.
            shapes = [torch.zeros((), dtype=torch.float16).expand(target.shape) for target in targets]
            _check_shape(tensors, tensor_map.family_name, tuple(tensor_map.to_family(shapes).shape))
            for target, source in zip(targets, tensor_map.to_headway(tensors[tensor_map.family_name]), strict=True):
                target.copy_(source)


def copy_table_rows(read_rows: Callable[[slice], Tensor], order: Sequence[int], target: Tensor) -> None:
    """Copy a table's rows ``order`` to the rows of ``target``, some thousand rows at a time.

    ``read_rows`` returns a slice of the table's rows. The order is ascending except for the special tokens.
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
