"""What a model attends to while it computes, seen through the taps of its attention modules.

Every attention module of Headway hands its weights through ``self.weights``, an identity. Inside :func:`capture` a hook
on each of them keeps what passes; afterwards the hooks are gone. Nothing is computed twice and no value is changed, so
a model that is watched gives what it gives unwatched, bit for bit, and one that is not watched pays nothing.

Dimensions: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["KINDS", "Capture", "CapturedMap", "Kind", "capture", "taps"]

Kind = Literal["encoder", "decoder", "cross", "pooling"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class CapturedMap:
    """The attention weights of one module.

    Attributes:
        name: The module's name in the model, such as ``decoder.blocks.0.cross_attention``.
        kind: Who attends to what: "encoder" and "decoder" to themselves, "cross" the decoder to the encoder's output,
            "pooling" one question to all positions of a text.
        layer: Its number among those of its kind, counted from 1.
        weights: A row for each query; over the keys that it may attend to it sums to 1.
    """

    name: str
    kind: Kind
    layer: int
    weights: Float[Tensor, "B H T S"]


class Capture:
    """What the taps have seen so far."""

    def __init__(self, found: list[tuple[str, Kind]]) -> None:
        self._taps = found
        self._seen: dict[str, list[Tensor]] = {name: [] for name, _ in found}

    def record(self, name: str, weights: Float[Tensor, "B H T S"]) -> None:
        """Keep the weights that a module has just used."""
        self._seen[name].append(weights.detach().float().cpu())

    @property
    def maps(self) -> tuple[CapturedMap, ...]:
        """The maps of all modules that have computed, in the model's order.

        Of a module that was called several times, as in decoding step by step, the queries follow one another; keys
        that came later have weight 0 in the rows before.
        """
        maps = list[CapturedMap]()
        for kind in KINDS:
            names = [name for name, of_kind in self._taps if of_kind == kind]
            maps += [
                CapturedMap(name, kind, layer, _joined(self._seen[name]))
                for layer, name in enumerate(names, start=1)
                if self._seen[name]
            ]
        return tuple(maps)


@contextmanager
def capture(model: nn.Module) -> Iterator[Capture]:
    """Watch the attention of ``model``: what it computes inside is found in the maps of what is yielded."""
    found = taps(model)
    seen = Capture([(name, kind) for name, kind, _ in found])
    with ExitStack() as hooks:
        for name, _, tap in found:
            handle = tap.register_forward_hook(_recorder(seen, name))
            hooks.callback(handle.remove)
        yield seen


def taps(model: nn.Module) -> list[tuple[str, Kind, nn.Module]]:
    """Each attention module's name, its kind, and its tap."""
    return [
        (name.removesuffix("weights").removesuffix("."), _kind(name), module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Identity) and name.split(".")[-1] == "weights"
    ]


def _recorder(seen: Capture, name: str) -> Any:
    return lambda _module, _inputs, weights: seen.record(name, weights)


def _kind(name: str) -> Kind:
    """By where a module stands: blocks have self-attention, a decoder without blocks (a recurrent one) has none."""
    parts = name.split(".")
    if "pooling" in parts:
        return "pooling"
    if "encoder" in parts:
        return "encoder"
    return "decoder" if "blocks" in parts and "cross_attention" not in parts else "cross"


def _joined(calls: list[Float[Tensor, "B H _ _"]]) -> Float[Tensor, "B H T S"]:
    widest = max(weights.size(3) for weights in calls)
    return torch.cat([F.pad(weights, (0, widest - weights.size(3))) for weights in calls], dim=2)
