"""What a model attends to while it computes, seen through the taps of its attention modules.

Every attention module of Headway hands its weights through ``self.weights``, an identity. Inside :func:`capture` a hook
on each of them keeps what passes; afterwards the hooks are gone. No value is changed, so a model that is watched gives
what it gives unwatched, bit for bit (where a fused kernel pays, it computes the output as ever, and the weights are
computed beside it), and one that is not watched pays nothing. How much will pass can be asked before
(:func:`numbers_in`).

Dimensions: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import DecoderBlock, EncoderBlock
from headway.nn.pooling import AttentionPooling
from headway.nn.recurrent_decoders import RecurrentAttention

__all__ = ["KINDS", "Capture", "CapturedMap", "Kind", "capture", "numbers_in", "taps"]

Kind = Literal["encoder", "decoder", "cross", "pooling"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class CapturedMap:
    """The attention weights of one module.

    Attributes:
        name: The module's name in the model, such as ``decoder.blocks.0.cross_attention``.
        kind: Who attends to what: "encoder" and "decoder" to themselves, "cross" the decoder to the encoder's output,
            "pooling" one question to all positions of a text; None where the module alone does not tell.
        layer: Its number among those of its kind, counted from 1.
        weights: A row for each query; over the keys that it may attend to it sums to 1.
    """

    name: str
    kind: Kind | None
    layer: int
    weights: Float[Tensor, "B H T S"]


class Capture:
    """What the taps have seen so far."""

    def __init__(self, found: list[tuple[str, Kind | None]]) -> None:
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
        for kind in (*KINDS, None):
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


def taps(model: nn.Module) -> list[tuple[str, Kind | None, nn.Module]]:
    """Each attention module's name, its kind, and its tap."""
    modules = dict(model.named_modules())
    names = [name.rpartition(".") for name, module in modules.items() if isinstance(module, nn.Identity)]
    return [(name, _kind(name, modules), modules[name + dot + own]) for name, dot, own in names if own == "weights"]


def numbers_in(model: nn.Module, source: int, target: int = 0) -> int:
    """How many weights, at most, are in the maps of one source and target of so many tokens."""
    sizes: dict[Kind | None, int] = {
        "encoder": source**2,
        "decoder": target**2,
        "cross": target * source,
        "pooling": source,
        None: max(source, target) ** 2,
    }
    modules = dict(model.named_modules())
    total = 0
    for name, kind, _ in taps(model):
        module = modules[name]
        total += sizes[kind] * (module.num_heads if isinstance(module, MultiHeadAttention) else 1)
    return total


def _recorder(seen: Capture, name: str) -> Any:
    return lambda _module, _inputs, weights: seen.record(name, weights)


def _kind(name: str, modules: Mapping[str, nn.Module]) -> Kind | None:
    """By what it is, or multi-head attention by the block that it stands in."""
    block, _, own = name.rpartition(".")
    match modules[name], modules[block]:
        case AttentionPooling(), _:
            return "pooling"
        case RecurrentAttention(), _:
            return "cross"
        case _, EncoderBlock():
            return "encoder"
        case _, DecoderBlock():
            return "cross" if own == "cross_attention" else "decoder"
    return None


def _joined(calls: list[Float[Tensor, "B H _ _"]]) -> Float[Tensor, "B H T S"]:
    widest = max(weights.size(3) for weights in calls)
    return torch.cat([F.pad(weights, (0, widest - weights.size(3))) for weights in calls], dim=2)
