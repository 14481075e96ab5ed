"""Export a masked language model, or a sequence classifier on one, to `transformers`, as one of two families.

    post-norm, learned positions, biases                 BERT
    pre-norm, rotary positions, gated, without biases    ModernBERT

Token ids do not change. BERT adds a segment embedding to every token, so a model without segment embeddings is exported
with a single segment of zeros. Both families have an output bias, which is zero if the model has none. A model without
windows is exported to ModernBERT with `global_attn_every_n_layers` = 1.

A classifier's head (:mod:`~headway.interop.huggingface.classifier_families`) is a dense layer with tanh on the first
position (BERT), or a dense layer and a norm on the first position or the mean (ModernBERT).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.bundle import ClassifierBundle, MaskedLanguageModelBundle
from headway.errors import ConfigError
from headway.interop.huggingface.causal_families import ACTIVATIONS, GATED_ACTIVATIONS, activation_name
from headway.interop.huggingface.checkpoint import write_json
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES, HEAD_ACTIVATIONS, POOLINGS
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.tensor_maps import TensorMap, unchanged_maps
from headway.interop.supported import ANY, COMMON_OPTIONS, EQUAL_HEAD_WIDTHS, Supported, refuse_unsupported
from headway.interop.tokenizer_exporting import masked_lm_tokenizer_files
from headway.models.masked import MaskedConfig
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.text.base import BOS, EOS, PAD
from headway.weights import named_weights, write_weights

_FORM: Supported = {
    **COMMON_OPTIONS,
    **EQUAL_HEAD_WIDTHS,
    **dict.fromkeys(("max_length", "tie", "output_bias", "norm_epsilon"), ANY),
}
SUPPORTED: dict[str, Supported] = {
    "bert": {**_FORM, "activation": tuple(dict.fromkeys(ACTIVATIONS.values())), "num_segments": ANY},
    "modernbert": {
        **_FORM,
        **dict.fromkeys(("rotary_base", "local_rotary_base", "encoder_window", "global_every"), ANY),
        "norm": ("pre",),
        "bias": ("none",),
        "positions": ("rotary",),
        "activation": tuple(dict.fromkeys(GATED_ACTIVATIONS.values())),
    },
}
_HEAD: Supported = dict.fromkeys(("body", "word_dropout", "pooled_dropout"), ANY)
SUPPORTED_HEADS: dict[str, Supported] = {
    "bert": {**_HEAD, "pooling": ("first",), "dense": ("tanh",)},
    "modernbert": {
        **_HEAD,
        "pooling": tuple(POOLINGS.values()),
        "dense": tuple(HEAD_ACTIVATIONS.values()),
        "dense_norm": (True,),
    },
}


def export_masked(bundle: MaskedLanguageModelBundle, folder: Path) -> str:
    """Write the model and its tokenizer to ``folder``, and return the title of the model family.

    Raises:
        ConfigError: The family or `transformers` does not support an option of the model or its tokenizer.
    """
    config = bundle.model.config
    family = MASKED_FAMILIES[model_type := _supported_form(config)]
    files = masked_lm_tokenizer_files(
        bundle.tokenizer, config.max_length, pairs=config.num_segments > 1, finds_mask=True
    )
    weights = {name: weight.float() for name, weight in named_weights(bundle.model).items()}
    tensors = _tensors(weights, list(family.tensors(config)), config)
    tensors[family.embedding] = weights["embedding.weight"]
    bias = weights.get("projection.bias", torch.zeros(bundle.tokenizer.vocab_size))
    tensors[family.bias] = bias
    if config.tie == "none":
        tensors[f"{family.projection}.weight"] = weights["projection.weight"]
        tensors[f"{family.projection}.bias"] = bias.clone()  # BERT stores the bias under both names
    head = {} if model_type == "bert" else {"classifier_activation": _gate_name(config)}
    content = {**_config(config, model_type), **head, "tie_word_embeddings": config.tie == "target"}
    _write(folder, tensors, content, family.architecture, files, bundle.tokenizer.vocab_size)
    return family.title


def export_sequence_classifier(bundle: ClassifierBundle, folder: Path) -> str:
    """Write the classifier and its tokenizer to ``folder``, and return the title of the model family.

    Raises:
        ConfigError: The family or `transformers` does not support an option of the model or its tokenizer.
    """
    model = bundle.model
    assert isinstance(model, SequenceClassifier)
    config, body = model.config, model.config.body
    if not isinstance(body, MaskedConfig):
        raise ConfigError(f"body.kind = {body.kind!r} cannot be exported to Hugging Face; supported: masked")
    family = CLASSIFIER_FAMILIES[model_type := _supported_form(body)]
    refuse_unsupported(config, f"Hugging Face's {family.title}", SUPPORTED_HEADS[model_type], __name__)
    files = masked_lm_tokenizer_files(bundle.tokenizer, body.max_length, pairs=body.num_segments > 1, finds_mask=False)
    weights = {name.removeprefix("body."): weight.float() for name, weight in named_weights(model).items()}
    tensors = _tensors(weights, [*family.body.tensors(body), *unchanged_maps(family.head)], body)
    tensors[family.body.embedding] = weights["embedding.weight"]
    labels = dict(enumerate(bundle.labels))
    content = {
        **_config(body, model_type),
        **_head_config(config, model_type),
        "id2label": labels,
        "label2id": {label: index for index, label in labels.items()},
        "problem_type": "single_label_classification",
    }
    _write(folder, tensors, content, family.architecture, files, bundle.tokenizer.vocab_size)
    return family.title


def _supported_form(config: MaskedConfig) -> str:
    """Return the family's ``model_type``, or raise :class:`ConfigError` if it does not support an option."""
    model_type = "modernbert" if config.norm == "pre" else "bert"
    toolkit = f"Hugging Face's {MASKED_FAMILIES[model_type].title} (for norm = {config.norm!r})"
    refuse_unsupported(config, toolkit, SUPPORTED[model_type], __name__)
    if config.encoder_window is not None and config.encoder_window % 2 == 0:
        raise ConfigError(
            f"encoder_window = {config.encoder_window} cannot be exported to {toolkit}; supported: odd numbers, "
            "because its windows are symmetric"
        )
    if config.encoder_window is not None and config.global_every is None:
        raise ConfigError(
            f"global_every = None cannot be exported to {toolkit} with encoder_window; supported: a number, because "
            "its first block attends to all positions"
        )
    return model_type


def _tensors(weights: dict[str, Tensor], maps: list[TensorMap], config: MaskedConfig) -> dict[str, Tensor]:
    """Return the tensors of a family, without the embedding and the output projection."""
    weights = {"segment_embedding.weight": torch.zeros(1, config.d_model), **weights}  # only BERT has segments
    return {
        tensor_map.family_name: tensor_map.to_family([weights[name] for name in tensor_map.headway_names])
        for tensor_map in maps
        if all(name in weights for name in tensor_map.headway_names)
    }


def _write(
    folder: Path,
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    architecture: str,
    tokenizer_files: dict[str, bytes],
    vocab_size: int,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder / "model.safetensors")
    common = {
        "architectures": [architecture],
        "vocab_size": vocab_size,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", {**config, **common})
    for name, content in tokenizer_files.items():
        (folder / name).write_bytes(content)


def _config(config: MaskedConfig, model_type: str) -> dict[str, Any]:
    """Return the keys of config.json that describe the encoder."""
    common = {
        "model_type": model_type,
        "hidden_size": config.d_model,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.encoder_layers,
        "max_position_embeddings": config.max_length,
    }
    if model_type == "bert":
        return common | {
            "hidden_act": activation_name(ACTIVATIONS, config.activation),
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            "layer_norm_eps": config.norm_epsilon,
            "type_vocab_size": max(config.num_segments, 1),
        }
    return common | {
        "hidden_activation": _gate_name(config),
        "norm_eps": config.norm_epsilon,
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.local_rotary_base or config.rotary_base,
        "local_attention": config.encoder_window or 1,
        "global_attn_every_n_layers": config.global_every or 1,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "cls_token_id": BOS,
        "sep_token_id": EOS,
    }


def _gate_name(config: MaskedConfig) -> str:
    return activation_name(GATED_ACTIVATIONS, config.activation)


def _head_config(config: SequenceClassifierConfig, model_type: str) -> dict[str, Any]:
    """Return the keys of config.json that describe the head of a classifier."""
    if model_type == "bert":
        return {"classifier_dropout": config.pooled_dropout}
    return {
        "classifier_dropout": config.pooled_dropout,
        "classifier_pooling": next(theirs for theirs, ours in POOLINGS.items() if ours == config.pooling),
        "classifier_activation": activation_name(HEAD_ACTIVATIONS, config.dense),
        "classifier_bias": True,
    }
