"""Accelerate a model's forward pass by replacing layers in place with kernel-backed subclasses.

A replaced layer is the same object with a different class (``module.__class__ = KernelFeedForward``), so its
parameters, their names and order, its hooks and its state dict do not change. The fast layers are used wherever
``forward`` runs: in training, development losses, scoring, alignment and classification. Only layers that a
:class:`Replacement` recognizes exactly, by type and by every attribute, are replaced; all others stay plain. If a new
option adds an attribute that no replacement lists, layers in which it is not None stay plain until the kernel-backed
class supports the option. Kernel-backed layers fall back to the plain implementation if their kernels do not support
the input's device or data type, if the machine does not support the kernels, and while ``torch.compile`` traces.

Replace layers before a model is wrapped by DDP or FSDP.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from torch.nn import functional as F

import headway.kernels as kernels
from headway.engine.attention import KernelMultiHeadAttention, unfused_scores_part, unfused_training_parts
from headway.engine.int8_weights import StoredLinear
from headway.engine.layers import (
    ACTIVATIONS,
    GATES,
    AutocastDropout,
    KernelDropout,
    KernelFeedForward,
    KernelGatedFeedForward,
    KernelLayerNorm,
    KernelNoNorm,
    KernelPostNorm,
    KernelPreNorm,
    KernelRMSNorm,
)
from headway.engine.linear import KernelLinear
from headway.engine.local_attention import LocalMultiHeadAttention
from headway.engine.recurrent import FusedRecurrentLayer
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm
from headway.nn.dropout import Dropout
from headway.nn.norms import RMSNorm
from headway.nn.positions import RelativeBias, RotaryPositions
from headway.nn.recurrent import RecurrentLayer
from headway.nn.scores import ScoreFunction
from headway.storage import user_cache_folder
from headway.torch_internals import module_attributes_and_members, module_members_are_visible

ModuleT = TypeVar("ModuleT", bound=nn.Module)
ValuePredicate = Callable[[Any], bool]


@dataclass(frozen=True)
class Replacement:
    """A plain class, the kernel-backed class that replaces it, and the attributes that the replacement supports.

    ``supported_attributes`` maps the name of each attribute and submodule to a predicate that accepts supported values.
    """

    plain_type: type[nn.Module]
    fast_type: type[nn.Module]
    supported_attributes: Mapping[str, ValuePredicate]

    def unsupported_reasons(self, module: nn.Module) -> list[str]:
        """Return why ``module``, which has the plain type, cannot be replaced. The list is empty if it can be."""
        if not module_members_are_visible():
            return ["PyTorch does not expose its parts"]
        reasons = []
        for name, value in module_attributes_and_members(module).items():
            if name not in self.supported_attributes:
                if value is not None:  # None means that the layer has no such part
                    reasons.append(f"{name} = {_shown(value)} is not listed in headway/engine/accelerate.py")
            elif not self.supported_attributes[name](value):
                reasons.append(f"{name} = {_shown(value)} has no fast form")
        return reasons


def _shown(value: Any) -> str:
    is_named_by_type = isinstance(value, nn.Module | nn.Parameter)
    return type(value).__name__ if is_named_by_type else getattr(value, "__name__", repr(value))


def is_any_value(_value: Any) -> bool:
    """Accept any value."""
    return True


def is_type(*types: type) -> ValuePredicate:
    """Return a predicate that accepts instances of exactly these types, but not of subclasses."""
    return lambda value: type(value) in types


def is_instance(*types: type) -> ValuePredicate:
    """Return a predicate that accepts instances of these types or of subclasses, for parts that are only called."""
    return lambda value: isinstance(value, types)


def is_one_of(*values: Any) -> ValuePredicate:
    """Return a predicate that accepts exactly these values."""
    return lambda value: any(
        value is accepted or (type(value) is type(accepted) and value == accepted) for accepted in values
    )


_DROPOUT, _LINEAR = is_type(Dropout, KernelDropout), is_type(nn.Linear, KernelLinear, StoredLinear)
_RESIDUAL = {"dropout": _DROPOUT, "residual": is_one_of(True)}
_NORM = {"norm": is_type(nn.LayerNorm, KernelLayerNorm, RMSNorm, KernelRMSNorm)}
_ATTENTION = {
    **dict.fromkeys(("num_heads", "num_kv_heads", "queries_per_key", "d_key", "d_value", "widths"), is_any_value),
    "projection": is_type(nn.Linear, StoredLinear),
    "output": _LINEAR,
    "score": is_instance(type(None), ScoreFunction),
    "query_outer": is_type(type(None), nn.Linear),
    "key_outer": is_type(type(None), nn.Linear),
    "query_norm": is_type(type(None), RMSNorm, KernelRMSNorm),
    "key_norm": is_type(type(None), RMSNorm, KernelRMSNorm),
    "rotary": is_type(type(None), RotaryPositions),
    "relative_bias": is_type(type(None), RelativeBias),
    "dropout": _DROPOUT,
}

_REPLACEMENTS = (
    Replacement(PostNorm, KernelPostNorm, _RESIDUAL | _NORM),
    Replacement(PreNorm, KernelPreNorm, _RESIDUAL | _NORM),
    Replacement(NoNorm, KernelNoNorm, _RESIDUAL),
    Replacement(
        FeedForward,
        KernelFeedForward,
        {"inner": _LINEAR, "outer": _LINEAR, "activation": is_one_of(F.relu, *ACTIVATIONS), "dropout": _DROPOUT},
    ),
    Replacement(
        GatedFeedForward,
        KernelGatedFeedForward,
        {
            **dict.fromkeys(("gate", "inner", "outer"), _LINEAR),
            "activation": is_one_of(*GATES),
            "dropout": _DROPOUT,
        },
    ),
    Replacement(MultiHeadAttention, KernelMultiHeadAttention, _ATTENTION | {"window": is_one_of(None)}),
    Replacement(MultiHeadAttention, LocalMultiHeadAttention, _ATTENTION | {"window": is_type(tuple)}),
    Replacement(
        nn.LayerNorm,
        KernelLayerNorm,
        {
            "normalized_shape": lambda shape: len(shape) == 1,
            "eps": is_any_value,
            "elementwise_affine": is_one_of(True),
            "weight": is_any_value,
            "bias": is_any_value,
        },
    ),
    Replacement(RMSNorm, KernelRMSNorm, {"epsilon": is_any_value, "weight": is_any_value}),
    Replacement(Dropout, KernelDropout, {"p": is_any_value}),
    Replacement(
        RecurrentLayer,
        FusedRecurrentLayer,
        {"cell": is_type(nn.GRU, nn.LSTM), "num_states": is_one_of(1, 2), "weight_dropout": _DROPOUT},
    ),
)
_INNER_LINEAR = Replacement(
    nn.Linear, KernelLinear, dict.fromkeys(("in_features", "out_features", "weight", "bias"), is_any_value)
)
_EMBEDDING_DROPOUT = Replacement(Dropout, AutocastDropout, {"p": is_any_value})

# Submodules to replace, by the type of the layer that contains them.
_INSIDE: dict[type[nn.Module], dict[str, Replacement]] = {
    Transformer: {"embedding_dropout": _EMBEDDING_DROPOUT},
    DecoderOnly: {"embedding_dropout": _EMBEDDING_DROPOUT},
    MaskedTransformer: {"embedding_dropout": _EMBEDDING_DROPOUT},
    FeedForward: {"inner": _INNER_LINEAR, "outer": _INNER_LINEAR},
    GatedFeedForward: {"gate": _INNER_LINEAR, "inner": _INNER_LINEAR, "outer": _INNER_LINEAR},
    MultiHeadAttention: {"output": _INNER_LINEAR},
}
_INSIDE |= {each.fast_type: _INSIDE[each.plain_type] for each in _REPLACEMENTS if each.plain_type in _INSIDE}


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Compile the forward pass of each block with ``torch.compile``, for all shapes.

    Blocks of the same kind share compiled code, so compiling a deep model takes as long as compiling a model with a
    single layer. PyTorch compiles the code again for passes without gradients, and for batches with a single row.

    PyTorch loads compiled code from its cache, by default a temporary folder that another user may have created. If
    ``TORCHINDUCTOR_CACHE_DIR`` is not set, this function sets it to a folder in this user's cache.
    """
    with suppress(RuntimeError):  # the user has no home folder
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache_folder() / "inductor"))
    for block in blocks:
        block.compile(dynamic=True)


@dataclass(frozen=True)
class LayerAcceleration:
    """A layer of a type that has a fast version, and whether this layer uses it.

    ``plain_reason`` is the reason why the layer stays plain. None means that it uses the fast version.
    """

    name: str
    layer_type: str
    plain_reason: str | None


def accelerate(model: ModuleT) -> ModuleT:
    """Replace layers of ``model`` in place with their fast versions, and return ``model``.

    Layers that have already been replaced stay unchanged.
    """
    candidates = [(module, replacement) for _, module, replacement in _candidates(model)]
    for module, replacement in candidates:
        if type(module) is replacement.plain_type and not replacement.unsupported_reasons(module):
            module.__class__ = replacement.fast_type
    return model


def layer_accelerations(model: nn.Module) -> list[LayerAcceleration]:
    """Return whether :func:`accelerate` replaces each layer of a type that has a fast version, in the model's order."""
    forms = []
    for name, module, replacement in _candidates(model):
        reason = None
        if type(module) is replacement.plain_type:
            reason = ", ".join(replacement.unsupported_reasons(module)) or None
        elif type(module) is not replacement.fast_type:
            reason = f"unknown type {type(module).__name__}"
        forms.append(LayerAcceleration(name, replacement.plain_type.__name__, reason))
    return forms


def describe_forward_acceleration(model: nn.Module) -> str:
    """Describe how the forward pass of ``model`` runs: how many layers are fast, and why the others are not.

    Fast attention layers are counted even if their options prevent using the operation that computes a whole layer.
    """
    if reason := kernels.unavailable_reason():
        return f"plain: the compiled kernels do not run ({reason})"
    forms = layer_accelerations(model)
    plain = Counter(f"{form.layer_type} ({form.plain_reason})" for form in forms if form.plain_reason is not None)
    fast = f"{len(forms) - plain.total()} of {len(forms)} layers have a fast form"
    described = [fast]
    if plain:
        described.append(f"plain: {', '.join(f'{count} {name}' for name, count in plain.items())}")
    attention = [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]
    separate = Counter(filter(None, map(unfused_scores_part, attention)))
    described += [
        f"{count} MultiHeadAttention compute scores and weights separately ({part})" for part, count in separate.items()
    ]
    in_training = Counter(
        ", ".join(unfused_training_parts(layer)) for layer in attention if unfused_scores_part(layer) is None
    )
    described += [
        f"{count} MultiHeadAttention train in several operations ({parts})"
        for parts, count in in_training.items()
        if parts
    ]
    return "; ".join(described)


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module, Replacement]]:
    """Yield each layer of a replaceable type or of a subclass, with its replacement."""
    by_place: dict[nn.Module, Replacement] = {}
    for name, module in model.named_modules():
        for child, replacement in _INSIDE.get(type(module), {}).items():
            if isinstance(module.get_submodule(child), StoredLinear):  # only trainable layers have a fast version
                continue
            by_place[module.get_submodule(child)] = replacement
        if module in by_place:
            yield name, module, by_place[module]
        else:
            matching = [replacement for replacement in _REPLACEMENTS if isinstance(module, replacement.plain_type)]
            if matching:
                yield name, module, _best(module, matching)


def _best(module: nn.Module, matching: Sequence[Replacement]) -> Replacement:
    """Return the replacement that ``module`` already uses, or else the one with the fewest unsupported attributes."""
    done = (replacement for replacement in matching if type(module) is replacement.fast_type)
    return next(done, None) or min(matching, key=lambda replacement: len(replacement.unsupported_reasons(module)))
