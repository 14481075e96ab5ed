"""Export a decoder-only model to `transformers`, as a model of the family that supports its options.

    RMSNorm and normed queries and keys     Qwen3
    RMSNorm and biases of q, k and v        Qwen2
    RMSNorm and a sliding window            Mistral
    RMSNorm                                 Llama
    layer norm and rotary positions         GPT-NeoX
    layer norm and learned positions        GPT-2

These families have no output bias. In an imported model, the output bias only disables the rows of missing special
tokens (:attr:`~headway.interop.vocabulary_order.VocabularyOrder.duplicates`). The exported vocabulary does not contain
such rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headway.bundle import LanguageModelBundle
from headway.errors import ConfigError
from headway.interop.huggingface.causal_families import (
    ACTIVATIONS,
    CAUSAL_FAMILIES,
    GATED_ACTIVATIONS,
    ROTARY_SCALINGS,
    activation_name,
)
from headway.interop.huggingface.checkpoint import write_json
from headway.interop.huggingface.importing import NEVER_GENERATED_BIAS
from headway.interop.search_settings import to_transformers_generation
from headway.interop.supported import ANY, COMMON_OPTIONS, EQUAL_HEAD_WIDTHS, Supported, refuse_unsupported
from headway.interop.tokenizer_exporting import language_model_tokenizer_files
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.text.base import BOS, EOS, PAD, UNK
from headway.weights import named_weights, write_weights

_FORM: Supported = {**COMMON_OPTIONS, **dict.fromkeys(("max_length", "tie", "output_bias", "norm_epsilon"), ANY)}
_LAYER_NORM: Supported = {**_FORM, **EQUAL_HEAD_WIDTHS, "activation": tuple(dict.fromkeys(ACTIVATIONS.values()))}
_ROTARY: Supported = {"positions": ("rotary",), **dict.fromkeys(("rotary_base", "rotary_scaling"), ANY)}
_RMS_NORM: Supported = {
    **_FORM,
    **_ROTARY,
    **dict.fromkeys(("d_key", "d_value", "num_kv_heads"), ANY),
    "norm_kind": ("rms",),
    "activation": tuple(dict.fromkeys(GATED_ACTIVATIONS.values())),
    "bias": ("none",),
}
SUPPORTED: dict[str, Supported] = {
    "gpt2": {**_LAYER_NORM, "positions": ("learned",)},
    "gpt_neox": {**_LAYER_NORM, **_ROTARY, "rotary_fraction": ANY, "parallel": ANY},
    "llama": {**_RMS_NORM, "bias": ("none", "all")},
    "mistral": {**_RMS_NORM, "decoder_window": ANY},
    "qwen2": {**_RMS_NORM, **EQUAL_HEAD_WIDTHS, "bias": ("qkv",), "decoder_window": ANY},
    "qwen3": {**_RMS_NORM, "qk_norm": (True,), "decoder_window": ANY},
}


def export_language_model(bundle: LanguageModelBundle, folder: Path) -> str:
    """Write the model and its tokenizer to ``folder``, and return the title of the model family.

    Raises:
        ConfigError: The family or `transformers` does not support an option of the model or its tokenizer.
    """
    model = bundle.model
    if not isinstance(model, DecoderOnly):
        raise ConfigError(
            f"model.kind = {model.config.kind!r} cannot be exported to Hugging Face; supported: decoder_only"
        )
    config, model_type = model.config, _model_type(model.config)
    family = CAUSAL_FAMILIES[model_type]
    refuse_unsupported(config, f"Hugging Face's {family.title}", SUPPORTED[model_type], __name__)
    width = config.d_model / config.num_heads
    if (config.d_key or width) != (config.d_value or width):
        name = "d_key" if config.d_value is None else "d_value"
        raise ConfigError(
            f"{name} = {getattr(config, name)} cannot be exported to Hugging Face's {family.title}; supported: the "
            "same width for keys and values"
        )
    kept = _exported_ids(model, family.title)
    files = language_model_tokenizer_files(bundle.tokenizer, bundle.prompt_prefix, kept, config.max_length)
    weights = named_weights(model)
    tensors = {
        tensor_map.family_name: tensor_map.to_family([weights[name] for name in tensor_map.headway_names])
        for tensor_map in family.tensors(config)
        if all(name in weights for name in tensor_map.headway_names)
    }
    tensors[family.embedding] = weights["embedding.weight"][kept]
    if config.tie == "none":
        tensors[family.projection] = weights["projection.weight"][kept]
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder / "model.safetensors")
    special: dict[str, Any] = {f"{name}_token_id": kept.index(new) for name, new in _SPECIAL.items() if new in kept}
    special.setdefault("bos_token_id", special["eos_token_id"])
    if bundle.extra_eos_ids:
        special["eos_token_id"] = [kept.index(new) for new in (EOS, *bundle.extra_eos_ids)]
    options = _gpt2_config(config) if model_type == "gpt2" else _rotary_config(config, model_type)
    common = {"model_type": model_type, "architectures": [family.architecture], "vocab_size": len(kept)}
    tied = {"tie_word_embeddings": config.tie == "target", "torch_dtype": "float32"}
    write_json(folder / "config.json", {**common, **options, **special, **tied})
    write_json(folder / "generation_config.json", special | to_transformers_generation(bundle.generation))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return family.title


_SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS}


def _model_type(config: DecoderOnlyConfig) -> str:
    if config.norm_kind == "layer":
        return "gpt_neox" if config.positions == "rotary" else "gpt2"
    if config.qk_norm:
        return "qwen3"
    if config.bias == "qkv":
        return "qwen2"
    return "llama" if config.decoder_window is None else "mistral"


def _exported_ids(model: DecoderOnly, title: str) -> list[int]:
    """Return the ids to export: all ids except the ids of missing special tokens."""
    size = len(model.projection.weight)
    if model.projection.bias is None:
        return [*range(size)]
    bias = model.projection.bias.detach().cpu()
    forbidden = [new for new in (PAD, BOS, UNK) if bias[new] <= NEVER_GENERATED_BIAS]
    others = torch.ones(size, dtype=torch.bool)
    others[forbidden] = False
    if bias[others].any():
        raise ConfigError(f"output_bias = True cannot be exported to Hugging Face's {title}; supported: false")
    return [int(new) for new in others.nonzero().flatten()]


def _gpt2_config(config: DecoderOnlyConfig) -> dict[str, Any]:
    return {
        "n_embd": config.d_model,
        "n_head": config.num_heads,
        "n_inner": config.d_ff,
        "n_layer": config.decoder_layers,
        "n_positions": config.max_length,
        "activation_function": activation_name(ACTIVATIONS, config.activation),
        "layer_norm_epsilon": config.norm_epsilon,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
    }


def _rotary_config(config: DecoderOnlyConfig, model_type: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.decoder_layers,
        "max_position_embeddings": config.max_length,
        "attention_dropout": config.attention_dropout,
        "rope_scaling": None,
    }
    if config.rotary_scaling is not None:
        scaling = config.rotary_scaling
        named = {theirs: getattr(scaling, ours) for theirs, ours in ROTARY_SCALINGS[scaling.kind].items()}
        options["rope_scaling"] = {"rope_type": scaling.kind} | {
            key: value for key, value in named.items() if value is not None
        }
    if model_type == "gpt_neox":
        return options | {
            "hidden_act": activation_name(ACTIVATIONS, config.activation),
            "rotary_pct": config.rotary_fraction,
            "rotary_emb_base": config.rotary_base,
            "layer_norm_eps": config.norm_epsilon,
            "hidden_dropout": config.dropout,
            "use_parallel_residual": config.parallel,
            "attention_bias": True,
        }
    options |= {
        "hidden_act": activation_name(GATED_ACTIVATIONS, config.activation),
        "num_key_value_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.d_key or config.d_model // config.num_heads,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
    }
    if model_type == "llama":
        options |= dict.fromkeys(("attention_bias", "mlp_bias"), config.bias == "all")
    if model_type == "mistral" or config.decoder_window is not None:
        options["sliding_window"] = config.decoder_window
    if model_type.startswith("qwen"):
        options |= {"use_sliding_window": config.decoder_window is not None, "max_window_layers": 0}
    return options
