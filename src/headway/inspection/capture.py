"""Record the attention weights of a model while it runs.

:func:`capture` observes the attention layers (:mod:`headway.nn.attention`) in the calling thread only. Capturing does
not change any result: an observed model returns the same bits. If a fused kernel computes the output, the attention
weights are computed separately. :func:`count_attention_weights` returns in advance how many weights there can be.

Shapes: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn.attention import MultiHeadAttention, observe_attention
from headway.nn.blocks import CausalBlock, DecoderBlock, EncoderBlock
from headway.nn.pooling import AttentionPooling
from headway.nn.recurrent_decoders import RecurrentAttention

Kind = Literal["encoder", "decoder", "cross", "pooling"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_ATTENTION = (MultiHeadAttention, RecurrentAttention, AttentionPooling)


@dataclass(frozen=True)
class CapturedMap:
    """The attention weights of one module.

    Attributes:
        name: The module's name in the model, such as ``decoder.blocks.0.cross_attention``.
        kind: "encoder" or "decoder" (self-attention), "cross" (decoder to encoder output), "pooling" (one query over
            all positions of a text), or None if the kind cannot be derived from the module.
        layer: Number of the module among the modules of its kind, counted from 1.
        weights: One row per query, which sums to 1 over the keys that the query may attend to.
    """

    name: str
    kind: Kind | None
    layer: int
    weights: Float[Tensor, "B H T S"]


class Capture:
    """The attention weights of a model that have been recorded so far."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._seen: dict[nn.Module, list[Tensor]] = {module: [] for module in self._modules.values()}

    def record(self, module: nn.Module, weights: Float[Tensor, "B H T S"]) -> None:
        """Store the weights that a module has just computed, unless it is outside the model."""
        if module in self._seen:
            self._seen[module].append(weights.detach().float().cpu())

    @property
    def maps(self) -> tuple[CapturedMap, ...]:
        """The maps of all modules that have run, in the model's order.

        If a module has run several times, as in step-by-step decoding, its queries are concatenated. Keys that did not
        exist at earlier steps have weight 0 in their rows.
        """
        maps = list[CapturedMap]()
        for kind in (*KINDS, None):
            ran = [name for name, module in self._modules.items() if self._seen[module]]
            maps += [
                CapturedMap(name, kind, layer, _joined(self._seen[self._modules[name]]))
                for layer, name in enumerate((name for name in ran if _kind(name, self._modules) == kind), start=1)
            ]
        return tuple(maps)


@contextmanager
def capture(model: nn.Module) -> Iterator[Capture]:
    """Record the attention of ``model`` in this thread inside the context. The yielded object contains the maps."""
    seen = Capture(model)
    with observe_attention(seen.record):
        yield seen


def attention_modules(model: nn.Module) -> list[tuple[str, Kind | None, nn.Module]]:
    """Return the name, the kind and the module of each attention module in ``model``."""
    modules = dict(model.named_modules())
    return [(name, _kind(name, modules), module) for name, module in modules.items() if isinstance(module, _ATTENTION)]


def count_attention_weights(model: nn.Module, source_length: int, target_length: int = 0) -> int:
    """Return the largest possible number of attention weights for a source and a target of these lengths."""
    sizes: dict[Kind | None, int] = {
        "encoder": source_length**2,
        "decoder": target_length**2,
        "cross": target_length * source_length,
        "pooling": source_length,
        None: max(source_length, target_length) ** 2,
    }
    return sum(
        sizes[kind] * (module.num_heads if isinstance(module, MultiHeadAttention) else 1)
        for _, kind, module in attention_modules(model)
    )


def _kind(name: str, modules: Mapping[str, nn.Module]) -> Kind | None:
    """Return the kind of an attention module, from its type or, for multi-head attention, from its block."""
    block, _, child_name = name.rpartition(".")
    match modules[name], modules[block]:
        case AttentionPooling(), _:
            return "pooling"
        case RecurrentAttention(), _:
            return "cross"
        case _, EncoderBlock():
            return "encoder"
        case _, CausalBlock():
            return "decoder"
        case _, DecoderBlock():
            return "cross" if child_name == "cross_attention" else "decoder"
    return None


def _joined(calls: list[Float[Tensor, "B H _ _"]]) -> Float[Tensor, "B H T S"]:
    widest = max(weights.size(3) for weights in calls)
    return torch.cat([F.pad(weights, (0, widest - weights.size(3))) for weights in calls], dim=2)
