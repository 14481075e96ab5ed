"""Record the attention weights of a model while it computes.

Every attention module of Headway passes its weights through ``self.weights``, an identity. :func:`capture` puts a
forward hook on each of them and removes the hooks afterwards. No value changes: an observed model returns the same bits
(where a fused kernel is used, it still computes the output, and the weights are computed beside it), and an unobserved
model pays nothing. :func:`numbers_in` tells in advance how many weights there will be.

Shapes: B batch, H heads, T queries, S keys.
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
        kind: "encoder" or "decoder" (self-attention), "cross" (decoder to encoder output), "pooling" (one query over
            all positions of a text), or None if the module alone does not tell.
        layer: Its number among the modules of its kind, counted from 1.
        weights: One row per query, which sums to 1 over the keys that the query may attend to.
    """

    name: str
    kind: Kind | None
    layer: int
    weights: Float[Tensor, "B H T S"]


class Capture:
    """Attention weights recorded so far."""

    def __init__(self, found: list[tuple[str, Kind | None]]) -> None:
        self._taps = found
        self._seen: dict[str, list[Tensor]] = {name: [] for name, _ in found}

    def record(self, name: str, weights: Float[Tensor, "B H T S"]) -> None:
        """Store the weights that a module has just computed."""
        self._seen[name].append(weights.detach().float().cpu())

    @property
    def maps(self) -> tuple[CapturedMap, ...]:
        """The maps of all modules that have run, in the model's order.

        If a module ran several times, as in step-by-step decoding, its queries are concatenated. Keys that did not
        exist yet have weight 0 in the earlier rows.
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
    """Record the attention of ``model`` inside the context; the yielded object contains the maps."""
    found = taps(model)
    seen = Capture([(name, kind) for name, kind, _ in found])
    with ExitStack() as hooks:
        for name, _, tap in found:
            handle = tap.register_forward_hook(_recorder(seen, name))
            hooks.callback(handle.remove)
        yield seen


def taps(model: nn.Module) -> list[tuple[str, Kind | None, nn.Module]]:
    """Return the name, kind and ``weights`` submodule of each attention module."""
    modules = dict(model.named_modules())
    names = [name.rpartition(".") for name, module in modules.items() if isinstance(module, nn.Identity)]
    return [(name, _kind(name, modules), modules[name + dot + own]) for name, dot, own in names if own == "weights"]


def numbers_in(model: nn.Module, source: int, target: int = 0) -> int:
    """Return the largest possible number of weights for a source and a target of these lengths."""
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
    """Tell the kind of an attention module by its type, or for multi-head attention by its block."""
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
