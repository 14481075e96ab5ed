"""Name a model's weights, store them in safetensors files, and load them into a model.

The names must never change, because model folders and checkpoints contain them. A tied weight is stored once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headway.config import spelling_hint
from headway.errors import BundleError

Shape = tuple[int, ...]

_CACHE_LINE = 64  # bytes
_DTYPE_NAMES = {torch.int8: "I8", torch.int32: "I32", torch.float32: "F32"}


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's weights, keyed by public name. A tied weight appears once, under its first name."""
    state = model.state_dict(keep_vars=True)  # tied weights are one parameter with several names
    first_names = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: tensor.detach() for name, tensor in state.items() if first_names[id(tensor)] == name}


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file."""
    path.touch()
    mode = path.stat().st_mode  # the default mode of new files; safetensors would grant access only to the owner
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:
        raise OSError(f"cannot write {path.name}: {error}") from None


def write_aligned_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file in which tensors whose size is a multiple of a cache line are aligned to cache lines.

    The safetensors library aligns tensors to 8 bytes. Kernels are faster if memory-mapped weights are aligned to cache
    lines.
    """
    order = sorted(weights, key=lambda name: (weights[name].nbytes % _CACHE_LINE > 0, -weights[name].itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + weights[name].nbytes
        shape = list(weights[name].shape)
        header[name] = {"dtype": _DTYPE_NAMES[weights[name].dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _CACHE_LINE)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(weights[name].contiguous().cpu().numpy().tobytes())


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        BundleError: The file is missing or damaged.
    """
    with _weight_file_errors(path):
        return load_file(path)


def read_weight(path: Path, name: str, rows: slice = slice(None)) -> Tensor:
    """Read one tensor of a safetensors file, or some of its rows. The tensor is memory-mapped.

    Raises:
        BundleError: The file is missing or damaged.
    """
    with _weight_file_errors(path), safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_slice(name)[rows]
        return tensor


def map_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, memory-mapped so that processes share the memory.

    Raises:
        BundleError: The file is missing or damaged.
    """
    with _weight_file_errors(path), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: Path) -> None:
    """Load ``weights`` into ``model``.

    Raises:
        BundleError: A name or shape differs. The message begins with ``origin``, the path of the weights.
    """
    expected = named_weights(model)
    check_weights(shapes_of(expected), shapes_of(weights), origin)
    placed = {name: weights[name].to(tensor.device) for name, tensor in expected.items()}
    model.load_state_dict(placed, strict=False)  # not strict, because only one name of each tied weight is present


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def read_shapes(path: Path) -> dict[str, Shape]:
    """Return the shape of each tensor in a safetensors file by reading only its header."""
    with _weight_file_errors(path), safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def check_readable(path: Path) -> None:
    """Raise :class:`BundleError` with the system's reason if a file cannot be read."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None


@contextmanager
def _weight_file_errors(path: Path) -> Iterator[None]:
    """Convert errors from reading a safetensors file to :class:`BundleError`."""
    if not path.is_file():
        raise BundleError(f"{path}: missing, but a model folder needs it; copy the folder again from its source")
    check_readable(path)
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise BundleError(f"{path}: truncated or not a safetensors file ({error}); copy the file again") from None


def check_weights(expected: Mapping[str, Shape], stored: Mapping[str, Shape], origin: Path) -> None:
    """Raise :class:`BundleError` if names or shapes of weights differ. The message begins with ``origin``."""
    if names := sorted(expected.keys() - stored.keys()):
        raise BundleError(f"{origin}: weight {names[0]!r} is missing ({len(names)} in all); not this model's weights")
    if foreign := sorted(stored.keys() - expected.keys()):
        raise BundleError(f"{origin}: unexpected weight {foreign[0]!r} ({spelling_hint(foreign[0], expected)})")
    for name, shape in expected.items():
        if shape != stored[name]:
            raise BundleError(
                f"{origin}: weight {name!r} has shape {list(stored[name])}; "
                f"config.json and the tokenizers require {list(shape)}"
            )
