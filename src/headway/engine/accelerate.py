"""Make a model's forward pass fast from outside: replace layers in place by kernel-backed subclasses.

A replaced layer is the same object with a different class (``module.__class__ = KernelFeedForward``), so its
parameters, their names and order, its hooks and its state dict do not change. The fast layers are used wherever
``forward`` runs: in training, development losses, scoring, alignment and classification. Only layers that a
:class:`Replacement` recognizes exactly, by type and by every attribute, are replaced; all others stay plain. A new
option of a layer is an attribute that no replacement lists, so the layer stays plain until its kernel-backed class
supports the option. Kernel-backed layers fall back to the plain form for inputs that their kernels do not support: on
other devices, of other data types, on machines without the kernels, and while ``torch.compile`` traces.

Replace layers before a model is wrapped by DDP or FSDP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

import headway.kernels as kernels
from headway.engine.attention import KernelMultiHeadAttention
from headway.engine.layers import (
    AutocastDropout,
    FusedRecurrentLayer,
    KernelDropout,
    KernelFeedForward,
    KernelLayerNorm,
    KernelNoNorm,
    KernelPostNorm,
    KernelPreNorm,
)
from headway.engine.linear import KernelLinear
from headway.engine.local_attention import LocalMultiHeadAttention
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm
from headway.nn.dropout import Dropout
from headway.nn.positions import RotaryPositions
from headway.nn.recurrent import RecurrentLayer
from headway.nn.scores import ScoreFunction

ModuleT = TypeVar("ModuleT", bound=nn.Module)
P = ParamSpec("P")
T = TypeVar("T")

Accepts = Callable[[Any], bool]


@dataclass(frozen=True)
class Replacement:
    """A plain class, the kernel-backed class that replaces it, and the attributes that the replacement supports.

    ``attributes`` maps the name of each attribute and submodule to a predicate that accepts the supported values.
    """

    plain: type[nn.Module]
    fast: type[nn.Module]
    attributes: Mapping[str, Accepts]

    def unsupported_reason(self, module: nn.Module) -> str | None:
        """Return why ``module``, which has the plain type, cannot be replaced, or None if it can."""
        own = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
        own |= module._modules | module._parameters
        for name, value in own.items():
            if name not in self.attributes:
                return f"unknown option {name!r}"
            if not self.attributes[name](value):
                shown = (
                    type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", repr(value))
                )
                return f"{name} = {shown} has no fast form"
        return None


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def any_value(_value: Any) -> bool:
    """Accept any value."""
    return True


def of_type(*types: type) -> Accepts:
    """Accept instances of exactly these types, not of subclasses."""
    return lambda value: type(value) in types


def instance_of(*types: type) -> Accepts:
    """Accept instances of these types or of subclasses: for parts that the layer only calls, whatever they compute."""
    return lambda value: isinstance(value, types)


def one_of(*values: Any) -> Accepts:
    """Accept exactly these values."""
    return lambda value: any(value is each or (type(value) is type(each) and value == each) for each in values)


_DROPOUT, _LINEAR = of_type(Dropout, KernelDropout), of_type(nn.Linear, KernelLinear)
_RESIDUAL = {"dropout": _DROPOUT, "residual": one_of(True)}
_NORM = {"norm": of_type(nn.LayerNorm, KernelLayerNorm)}
_ATTENTION = {
    **dict.fromkeys(("num_heads", "d_key", "d_value", "widths"), any_value),
    "projection": of_type(nn.Linear),
    "output": _LINEAR,
    "score": instance_of(type(None), ScoreFunction),
    "query_outer": of_type(type(None), nn.Linear),
    "key_outer": of_type(type(None), nn.Linear),
    "rotary": of_type(type(None), RotaryPositions),
    "dropout": _DROPOUT,
}

_REPLACEMENTS = (
    Replacement(PostNorm, KernelPostNorm, _RESIDUAL | _NORM),
    Replacement(PreNorm, KernelPreNorm, _RESIDUAL | _NORM),
    Replacement(NoNorm, KernelNoNorm, _RESIDUAL),
    Replacement(
        FeedForward,
        KernelFeedForward,
        {"inner": _LINEAR, "outer": _LINEAR, "activation": one_of(F.relu), "dropout": _DROPOUT},
    ),
    Replacement(MultiHeadAttention, KernelMultiHeadAttention, _ATTENTION | {"window": one_of(None)}),
    Replacement(MultiHeadAttention, LocalMultiHeadAttention, _ATTENTION | {"window": of_type(tuple)}),
    Replacement(
        nn.LayerNorm,
        KernelLayerNorm,
        {
            "normalized_shape": lambda shape: len(shape) == 1,
            "eps": any_value,
            "elementwise_affine": one_of(True),
            "weight": any_value,
            "bias": lambda bias: bias is not None,
        },
    ),
    Replacement(Dropout, KernelDropout, {"p": any_value}),
    Replacement(RecurrentLayer, FusedRecurrentLayer, {"cell": of_type(nn.GRU, nn.LSTM), "num_states": one_of(1, 2)}),
)
_INNER_LINEAR = Replacement(
    nn.Linear, KernelLinear, dict.fromkeys(("in_features", "out_features", "weight", "bias"), any_value)
)
_EMBEDDING_DROPOUT = Replacement(Dropout, AutocastDropout, {"p": any_value})

# Submodules that are replaced because of the layer that they are in.
_INSIDE: dict[type[nn.Module], dict[str, Replacement]] = {
    Transformer: {"embedding_dropout": _EMBEDDING_DROPOUT},
    FeedForward: {"inner": _INNER_LINEAR, "outer": _INNER_LINEAR},
    GatedFeedForward: {"gate": _INNER_LINEAR, "inner": _INNER_LINEAR, "outer": _INNER_LINEAR},
    MultiHeadAttention: {"output": _INNER_LINEAR},
}
_INSIDE |= {each.fast: _INSIDE[each.plain] for each in _REPLACEMENTS if each.plain in _INSIDE}


def compile_forward(compute: Callable[P, T]) -> Callable[P, T]:
    """Compile a part of a forward pass with ``torch.compile``, as one graph for all shapes."""
    compiled: Callable[P, T] = torch.compile(compute, dynamic=True)
    return compiled


@dataclass(frozen=True)
class LayerForm:
    """A layer for which a fast form exists. ``reason`` says why the layer is plain; None means that it is fast."""

    name: str
    layer_type: str
    reason: str | None


def accelerate(model: ModuleT) -> ModuleT:
    """Replace the layers of ``model`` in place by their fast forms, and return it.

    Layers that have already been replaced are left unchanged.
    """
    found = [(module, replacement) for _, module, replacement in _candidates(model)]
    for module, replacement in found:
        if type(module) is replacement.plain and replacement.unsupported_reason(module) is None:
            module.__class__ = replacement.fast
    return model


def layer_forms(model: nn.Module) -> list[LayerForm]:
    """Return the form that :func:`accelerate` gives each layer for which a fast form exists, in the model's order."""
    forms = []
    for name, module, replacement in _candidates(model):
        reason = None
        if type(module) is replacement.plain:
            reason = replacement.unsupported_reason(module)
        elif type(module) is not replacement.fast:
            reason = f"unknown type {type(module).__name__}"
        forms.append(LayerForm(name, replacement.plain.__name__, reason))
    return forms


def describe_forward_form(model: nn.Module) -> str:
    """Describe how many layers of ``model`` have a fast form for the forward pass, and why the others are plain."""
    if not kernels.available():
        return "plain: the compiled kernels do not run on this machine"
    forms = layer_forms(model)
    plain = Counter(f"{form.layer_type} ({form.reason})" for form in forms if form.reason is not None)
    fast = f"{len(forms) - plain.total()} of {len(forms)} layers have a fast form"
    return f"{fast}; plain: {', '.join(f'{count} {name}' for name, count in plain.items())}" if plain else fast


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, Replacement]]:
    """Yield each layer of a replaceable type or a subclass of one, with its replacement."""
    by_place: dict[nn.Module, Replacement] = {}
    for name, module in model.named_modules():
        for child, replacement in _INSIDE.get(type(module), {}).items():
            by_place[module.get_submodule(child)] = replacement
        if module in by_place:
            yield name, module, by_place[module]
        else:
            matching = [each for each in _REPLACEMENTS if isinstance(module, each.plain)]
            if matching:
                yield name, module, _best(module, matching)


def _best(module: nn.Module, matching: Sequence[Replacement]) -> Replacement:
    """Return the replacement that ``module`` already has or could have, or the first one if there is none."""
    done = (each for each in matching if type(module) is each.fast)
    possible = (each for each in matching if type(module) is each.plain and each.unsupported_reason(module) is None)
    return next(done, None) or next(possible, matching[0])
