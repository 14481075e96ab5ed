"""Parts of a model that stay as they are while the rest is trained, chosen by the public names of their weights."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

from torch import nn

from headway.config import nearest
from headway.errors import ConfigError

__all__ = ["freeze"]


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Take every weight that a pattern matches out of training; ``*`` and ``?`` stand for anything, as in file names.

    Patterns meet the names of a state dict, and so of a model folder. Tied weights have several names; each freezes
    them all. Query, key and value of one attention are one matrix while training, so they freeze together or not.
    :class:`ConfigError` where a pattern matches nothing, where only a part of a matrix would be frozen, or all.
    """
    names = _names(model)
    known = [name for mine in names.values() for name in mine]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(f"training.freeze: {pattern!r} matches no weight; {_hint(pattern, known)}")
    for parameter, mine in names.items():
        matched = {name for name in mine if any(fnmatchcase(name, pattern) for pattern in patterns)}
        whole = any(size == parameter.numel() for name, size in mine.items() if name in matched)
        if matched and not whole and len(matched) < len(mine):
            raise ConfigError(
                f"training.freeze would freeze {', '.join(sorted(matched))} without "
                f"{', '.join(sorted(mine.keys() - matched))}, but they are one matrix in training: freeze all or none"
            )
        parameter.requires_grad_(not matched)
    if not any(parameter.requires_grad for parameter in names):
        raise ConfigError("training.freeze leaves no weight to train; freeze fewer")


def _names(model: nn.Module) -> dict[nn.Parameter, dict[str, int]]:
    """For each parameter, the public names of its parts, or of the whole, with the number of elements behind each."""
    names: dict[nn.Parameter, dict[str, int]] = {parameter: {} for parameter in model.parameters()}
    owners = {parameter.untyped_storage().data_ptr(): parameter for parameter in names}
    for name, tensor in model.state_dict().items():
        if (owner := owners.get(tensor.untyped_storage().data_ptr())) is not None:
            names[owner][name] = tensor.numel()
    return names


def _hint(pattern: str, known: list[str]) -> str:
    """The nearest name, or the nearest part of the model; where none is near, the largest parts."""
    parts = {".".join(name.split(".")[:depth]) + ".*" for name in known for depth in range(1, name.count(".") + 1)}
    close = difflib.get_close_matches(pattern, [*known, *parts], n=1)
    return nearest(pattern, close or {name.split(".")[0] + ".*" for name in known})
