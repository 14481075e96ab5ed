"""The `transformers` families of decoder-only models that Headway can represent, and how they differ.

                norm        positions               feed-forward     biases        further
    GPT-2       layer norm  learned                 GELU (tanh)      all           matrices stored transposed
    GPT-NeoX    layer norm  rotary, part of a head  GELU             all           sub-layers in parallel (Pythia)
    Llama       RMSNorm     rotary                  SwiGLU           none          grouped-query attention
    Mistral     RMSNorm     rotary                  SwiGLU           none          sliding window
    Qwen2       RMSNorm     rotary                  SwiGLU           q, k, v only
    Qwen3       RMSNorm     rotary                  SwiGLU           none          normed queries and keys

All families are pre-norm with a final norm. Rotary positions rotate pairs of units. In these families, a pair consists
of units i and i + K/2 of a head (K rotated units); in Headway, of units 2i and 2i + 1, as in the paper. The order of a
head's units is arbitrary, so the rows of the query and key projections are permuted
(:func:`~headway.interop.huggingface.tensor_maps.permute_heads`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from headway.interop.huggingface.checkpoint import Checkpoint, ModelFamily
from headway.interop.huggingface.tensor_maps import TensorMap, permute_heads, rotary_unit_order, unchanged_maps
from headway.models.decoder_only import DecoderOnlyConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
GATED_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu", "sigmoid": "glu"}


@dataclass(frozen=True, kw_only=True)
class CausalFamily(ModelFamily):
    """Properties of a family of decoder-only models.

    Attributes:
        fixed: Keys of config.json that affect the result, with the only supported value of each.
        options: Function that returns the options of :class:`DecoderOnlyConfig` for a checkpoint.
        tensors: Function that yields the family's tensors for a config, except the embeddings and the output
            projection.
        prefix: Prefix of all tensor names except the output projection's. It may be missing in files without an output
            projection.
        embedding: Tensor name of the embedding.
        projection: Tensor name of an output projection that is not tied to the embedding.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[Checkpoint[CausalFamily]], dict[str, Any]]
    tensors: Callable[[DecoderOnlyConfig], Iterator[TensorMap]]
    prefix: str
    embedding: str
    projection: str = "lm_head.weight"

    @property
    def alternative_architecture(self) -> str:
        """Name of the `transformers` class without an output projection."""
        return f"{self.architecture.removesuffix('LMHeadModel').removesuffix('ForCausalLM')}Model"

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """Keys of config.json for which the family supports only one value, and this value."""
        return self.fixed


def _gpt2_options(checkpoint: Checkpoint[CausalFamily]) -> dict[str, Any]:
    width = checkpoint.positive_int("n_embd")
    return {
        "d_model": width,
        "num_heads": checkpoint.positive_int("n_head"),
        "d_ff": 4 * width if checkpoint["n_inner"] is None else checkpoint.positive_int("n_inner"),
        "decoder_layers": checkpoint.positive_int("n_layer"),
        "max_length": checkpoint.positive_int("n_positions"),
        "activation": read_activation(checkpoint, "activation_function", ACTIVATIONS),
        "positions": "learned",
        "norm_epsilon": checkpoint["layer_norm_epsilon"],
        "dropout": checkpoint["resid_pdrop"],
        "attention_dropout": checkpoint["attn_pdrop"],
    }


def _neox_options(checkpoint: Checkpoint[CausalFamily]) -> dict[str, Any]:
    theirs = {"rope_theta": checkpoint["rotary_emb_base"], "partial_rotary_factor": checkpoint["rotary_pct"]}
    options = _rotary_options(checkpoint, theirs)
    return options | {
        "activation": read_activation(checkpoint, "hidden_act", ACTIVATIONS),
        "norm_epsilon": checkpoint["layer_norm_eps"],
        "dropout": checkpoint["hidden_dropout"],
        "parallel": checkpoint["use_parallel_residual"],
    }


def _llama_options(checkpoint: Checkpoint[CausalFamily], **fixed: Any) -> dict[str, Any]:
    older = {"rope_theta": checkpoint["rope_theta"], "partial_rotary_factor": 1.0}
    options = _rotary_options(checkpoint, older)
    # Without scaling, `transformers` ignores partial_rotary_factor for this family; with scaling, it fails.
    if options["rotary_fraction"] != 1 and options["rotary_scaling"] is not None:
        raise checkpoint.bundle_error(
            f"partial_rotary_factor = {options['rotary_fraction']} with scaled rotary positions is not supported"
        )
    options["rotary_fraction"] = 1.0
    heads, key_heads = options["num_heads"], checkpoint["num_key_value_heads"]
    if key_heads is not None and checkpoint.positive_int("num_key_value_heads") != heads:
        options["num_kv_heads"] = key_heads
    if checkpoint["head_dim"] is not None and checkpoint.positive_int("head_dim") * heads != options["d_model"]:
        options |= dict.fromkeys(("d_key", "d_value"), checkpoint["head_dim"])
    return options | {
        "activation": read_activation(checkpoint, "hidden_act", GATED_ACTIVATIONS),
        "norm_kind": "rms",
        "norm_epsilon": checkpoint["rms_norm_eps"],
        "bias": "none",
        "dropout": 0.0,
        "decoder_window": _window(checkpoint),
        **fixed,
    }


def _plain_llama_options(checkpoint: Checkpoint[CausalFamily]) -> dict[str, Any]:
    biases = {checkpoint["attention_bias"], checkpoint["mlp_bias"]}
    if len(biases) > 1:
        raise checkpoint.bundle_error(
            f"attention_bias = {checkpoint['attention_bias']} and mlp_bias = {checkpoint['mlp_bias']}: Headway needs "
            "the same value for both"
        )
    return _llama_options(checkpoint, bias="all" if biases == {True} else "none")


def _rotary_options(checkpoint: Checkpoint[CausalFamily], older: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary position options, which GPT-NeoX and Llama have in common.

    Since version 5, `transformers` stores all rotary position settings under ``rope_parameters``. ``older`` contains
    the values of the keys that were used before. If ``rope_scaling`` is present too, it replaces ``rope_parameters``.
    """
    scaling = checkpoint["rope_scaling"] or checkpoint["rope_parameters"] or {}
    if not isinstance(scaling, dict):
        raise checkpoint.bundle_error(f"rope_scaling = {scaling!r}: expected an object")
    settings = {**older, **scaling}
    return {
        "d_model": checkpoint.positive_int("hidden_size"),
        "num_heads": checkpoint.positive_int("num_attention_heads"),
        "d_ff": checkpoint.positive_int("intermediate_size"),
        "decoder_layers": checkpoint.positive_int("num_hidden_layers"),
        "max_length": checkpoint.positive_int("max_position_embeddings"),
        "attention_dropout": checkpoint["attention_dropout"],
        "positions": "rotary",
        "rotary_base": settings.pop("rope_theta"),
        "rotary_fraction": settings.pop("partial_rotary_factor"),
        "rotary_scaling": _scaling(checkpoint, settings),
    }


# The settings of each kind of rotary scaling: the key in config.json, and the field of RotaryScaling.
ROTARY_SCALINGS = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_length",
        "beta_slow": "slow_rotations",
        "beta_fast": "fast_rotations",
        "attention_factor": "magnitude",
    },
}


def _scaling(checkpoint: Checkpoint[CausalFamily], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    given = {key: value for key, value in settings.items() if value is not None and key not in ("rope_type", "type")}
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ROTARY_SCALINGS:
        raise checkpoint.bundle_error(f"rope_type = {kind!r} is not supported; supported: {', '.join(ROTARY_SCALINGS)}")
    known = ROTARY_SCALINGS[kind]
    if kind == "yarn" and given.pop("truncate", True) is not True:
        raise checkpoint.bundle_error("truncate = false in yarn scaling of rotary positions is not supported")
    if kind == "default":
        given.pop("factor", None)
    if strange := sorted(given.keys() - known):
        value = json.dumps(given[strange[0]])
        raise checkpoint.bundle_error(f"{strange[0]} = {value} in rope_parameters of type {kind!r} is not supported")
    if kind == "default":
        return None
    if kind == "yarn":
        given.setdefault("original_max_position_embeddings", checkpoint["max_position_embeddings"])
    return {"kind": kind, **{known[key]: value for key, value in given.items()}}


def read_activation(checkpoint: Checkpoint[Any], key: str, known: Mapping[str, str]) -> str:
    """Return Headway's name of the activation under ``key``. ``known`` maps `transformers`' names to Headway's."""
    name = checkpoint[key]
    if not isinstance(name, str) or name not in known:
        raise checkpoint.bundle_error(f"{key} = {name!r} is not supported; supported: {', '.join(known)}")
    return known[name]


def activation_name(known: Mapping[str, str], activation: str) -> str:
    """Return `transformers`' first name of an activation. ``known`` maps `transformers`' names to Headway's."""
    return next(theirs for theirs, ours in known.items() if ours == activation)


def _window(checkpoint: Checkpoint[CausalFamily]) -> int | None:
    """Return the size of the sliding window, which must be the same in all layers, or None for full attention."""
    defaults, layers = checkpoint.family.defaults, checkpoint.positive_int("num_hidden_layers")
    size = checkpoint.config.get("sliding_window", defaults.get("sliding_window"))  # null means no window here
    if size is None or ("use_sliding_window" in defaults and not checkpoint["use_sliding_window"]):
        return None
    first = checkpoint["max_window_layers"] or 0
    full, sliding = "full_attention", "sliding_attention"
    kinds = set(checkpoint["layer_types"] or [full if layer < first else sliding for layer in range(layers)])
    if kinds not in ({full}, {sliding}):
        raise checkpoint.bundle_error(
            f"layer_types (or max_window_layers) has the values {', '.join(sorted(map(str, kinds)))}: Headway needs "
            f"the same in all layers, {full} or {sliding}"
        )
    return None if kinds == {full} else checkpoint.positive_int("sliding_window")


def _gpt2_tensors(config: DecoderOnlyConfig) -> Iterator[TensorMap]:
    yield TensorMap("transformer.wpe.weight", ("positions.table",))
    yield from unchanged_maps({"transformer.ln_f": "decoder.norm"})
    for layer in range(config.decoder_layers):
        theirs, ours = f"transformer.h.{layer}", f"decoder.blocks.{layer}"
        norms = {"ln_1": "attention_residual.norm", "ln_2": "feed_forward_residual.norm"}
        yield from unchanged_maps({f"{theirs}.{name}": f"{ours}.{norm}" for name, norm in norms.items()})
        matrices = {
            "attn.c_attn": tuple(f"attention.{part}" for part in ("query", "key", "value")),
            "attn.c_proj": ("attention.output",),
            "mlp.c_fc": ("feed_forward.inner",),
            "mlp.c_proj": ("feed_forward.outer",),
        }
        for name, parts in matrices.items():
            for kind in ("weight", "bias"):  # movedim, because .T is deprecated for the one dimension of a bias
                yield TensorMap(
                    f"{theirs}.{name}.{kind}",
                    tuple(f"{ours}.{part}.{kind}" for part in parts),
                    partial(_transposed_parts, len(parts)),
                    _joined_and_transposed,
                )


def _transposed_parts(count: int, tensor: Tensor) -> Sequence[Tensor]:
    return tensor.movedim(-1, 0).chunk(count)


def _joined_and_transposed(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)).movedim(0, -1)


def _neox_tensors(config: DecoderOnlyConfig) -> Iterator[TensorMap]:
    heads, order = config.num_heads, rotary_unit_order(config.d_model // config.num_heads, config.rotary_fraction)
    yield from unchanged_maps({"gpt_neox.final_layer_norm": "decoder.norm"})
    for layer in range(config.decoder_layers):
        theirs, ours = f"gpt_neox.layers.{layer}", f"decoder.blocks.{layer}"
        modules = {
            "input_layernorm": "attention_residual.norm",
            "post_attention_layernorm": "feed_forward_residual.norm",
            "attention.dense": "attention.output",
            "mlp.dense_h_to_4h": "feed_forward.inner",
            "mlp.dense_4h_to_h": "feed_forward.outer",
        }
        yield from unchanged_maps({f"{theirs}.{name}": f"{ours}.{module}" for name, module in modules.items()})
        for kind in ("weight", "bias"):
            yield TensorMap(
                f"{theirs}.attention.query_key_value.{kind}",
                tuple(f"{ours}.attention.{part}.{kind}" for part in ("query", "key", "value")),
                partial(_parts_of_heads, heads, order),
                partial(_joined_per_head, heads, order),
            )


def _parts_of_heads(heads: int, order: Int[Tensor, " K"], tensor: Tensor) -> Sequence[Tensor]:
    query, key, value = (part.flatten(0, 1) for part in torch.unflatten(tensor, 0, (heads, 3, -1)).unbind(1))
    return permute_heads(order, query), permute_heads(order, key), value


def _joined_per_head(heads: int, order: Int[Tensor, " K"], parts: Sequence[Tensor]) -> Tensor:
    query, key, value = parts
    theirs = (permute_heads(order.argsort(), query), permute_heads(order.argsort(), key), value)
    return torch.stack([torch.unflatten(part, 0, (heads, -1)) for part in theirs], dim=1).flatten(0, 2)


def _llama_tensors(config: DecoderOnlyConfig) -> Iterator[TensorMap]:
    order = rotary_unit_order(config.d_key or config.d_model // config.num_heads, config.rotary_fraction)
    yield TensorMap("model.norm.weight", ("decoder.norm.weight",))
    for layer in range(config.decoder_layers):
        theirs, ours = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        modules = {
            "self_attn.v_proj": "attention.value",
            "self_attn.o_proj": "attention.output",
            "mlp.gate_proj": "feed_forward.gate",
            "mlp.up_proj": "feed_forward.inner",
            "mlp.down_proj": "feed_forward.outer",
            "input_layernorm": "attention_residual.norm",
            "post_attention_layernorm": "feed_forward_residual.norm",
        }
        yield from unchanged_maps({f"{theirs}.{name}": f"{ours}.{module}" for name, module in modules.items()})
        rotated = {"q_proj": "query", "k_proj": "key", "q_norm": "query_norm", "k_norm": "key_norm"}
        for name, part in rotated.items():
            for kind in ("weight", "bias"):
                yield TensorMap(
                    f"{theirs}.self_attn.{name}.{kind}",
                    (f"{ours}.attention.{part}.{kind}",),
                    lambda tensor: [permute_heads(order, tensor)],
                    lambda parts: permute_heads(order.argsort(), parts[0]),
                )


_TOKENS: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "vocab_size": 0}
_GPT2: dict[str, Any] = {
    **_TOKENS,
    "vocab_size": 50257,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_layer": 12,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
}
_ROTARY: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "max_position_embeddings": 2048,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_parameters": None,
    "rope_scaling": None,
}
_NEOX: dict[str, Any] = {
    **_ROTARY,
    "vocab_size": 50432,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "layer_norm_eps": 1e-5,
    "hidden_dropout": 0.0,
    "use_parallel_residual": True,
    "attention_bias": True,
}
_LLAMA: dict[str, Any] = {
    **_ROTARY,
    "vocab_size": 32000,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
_SLIDING = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
_QWEN: dict[str, Any] = {
    **_LLAMA,
    **_SLIDING,
    "vocab_size": 151936,
    "bos_token_id": None,
    "eos_token_id": None,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
}
_LLAMA_NAMES: dict[str, Any] = {
    "tensors": _llama_tensors,
    "prefix": "model.",
    "embedding": "model.embed_tokens.weight",
}

CAUSAL_FAMILIES: dict[str, CausalFamily] = {
    "gpt2": CausalFamily(
        title="GPT-2",
        architecture="GPT2LMHeadModel",
        defaults=_GPT2,
        fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        options=_gpt2_options,
        tensors=_gpt2_tensors,
        prefix="transformer.",
        embedding="transformer.wte.weight",
    ),
    "gpt_neox": CausalFamily(
        title="GPT-NeoX",
        architecture="GPTNeoXForCausalLM",
        defaults=_NEOX,
        fixed={"attention_bias": True},
        options=_neox_options,
        tensors=_neox_tensors,
        prefix="gpt_neox.",
        embedding="gpt_neox.embed_in.weight",
        projection="embed_out.weight",
    ),
    "llama": CausalFamily(
        title="Llama",
        architecture="LlamaForCausalLM",
        defaults={**_LLAMA, "attention_bias": False, "mlp_bias": False},
        options=_plain_llama_options,
        **_LLAMA_NAMES,
    ),
    "mistral": CausalFamily(
        title="Mistral",
        architecture="MistralForCausalLM",
        defaults={
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        options=_llama_options,
        **_LLAMA_NAMES,
    ),
    "qwen2": CausalFamily(
        title="Qwen2",
        architecture="Qwen2ForCausalLM",
        defaults=_QWEN,
        options=partial(_llama_options, bias="qkv"),
        **_LLAMA_NAMES,
    ),
    "qwen3": CausalFamily(
        title="Qwen3",
        architecture="Qwen3ForCausalLM",
        defaults={**_QWEN, "head_dim": 128, "attention_bias": False},
        fixed={"attention_bias": False},
        options=partial(_llama_options, qk_norm=True),
        **_LLAMA_NAMES,
    ),
}
