"""Export to `transformers`: a post-norm Transformer becomes MarianMT, a pre-norm Transformer becomes Pegasus, and a
classifier gets a custom class.

Marian and Pegasus compute the same function as our Transformer with sinusoidal positions, except that all sines come
before all cosines. The paper's interleaved sinusoids are also exported exactly. The order of the d_model dimensions of
the residual stream is arbitrary, so all weights whose inputs or outputs are in the residual stream are permuted in the
same way (:func:`_as_halves`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from headway.bundle import ClassifierBundle
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.interop.huggingface.checkpoint import write_json
from headway.interop.huggingface.families import FAMILIES, OPTION_NAMES, OUTPUT_BIAS_TENSOR, tensor_names
from headway.interop.search_settings import to_transformers_search
from headway.interop.supported import (
    ANY,
    COMMON_OPTIONS,
    EQUAL_HEAD_WIDTHS,
    GATE_ACTIVATIONS,
    Supported,
    refuse_unsupported,
)
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.positions import sinusoids
from headway.text.base import BOS, EOS, PAD, UNK
from headway.weights import named_weights, write_weights

if TYPE_CHECKING:
    from headway.models.classifier import ClassifierConfig

_MODELING_FILE = Path(__file__).with_name("modeling_headway.py")
_MARIAN: Supported = {
    **COMMON_OPTIONS,
    **EQUAL_HEAD_WIDTHS,
    **dict.fromkeys(("max_length", "scale_embedding", "output_bias"), ANY),
    "activation": ("relu", "gelu", "silu"),
    "norm": ("post", "pre"),
    "sinusoid_layout": ("interleaved", "halves"),
    "tie": ("all", "target", "none"),
}
SUPPORTED: dict[str, Supported] = {
    "marian": _MARIAN,
    "pegasus": {**_MARIAN, "tie": ("all",)},
    "classifier": {  # implemented in modeling_headway.py
        **COMMON_OPTIONS,
        **dict.fromkeys(("d_key", "d_value", "residual", "scale_embedding", "convolution", "masked"), ANY),
        **dict.fromkeys(("max_length", "pad_to_max_length"), ANY),
        "activation": ("relu", "gelu", "silu", *GATE_ACTIVATIONS),
        "norm": ("post", "pre", "none"),
        "positions": ("sinusoidal", "learned", "none"),
        "pooling": ("mean", "max", "mean_max", "first", "last", "attention"),
    },
}
_SPECIAL_TOKENS = {"pad_token_id": PAD, "decoder_start_token_id": BOS, "bos_token_id": BOS, "eos_token_id": EOS}
# Modules whose matrix rows write to the residual stream. The columns of all other matrices read from it.
_WRITES_RESIDUAL = ("attention.output", "feed_forward.outer")


def export_model(
    model: Transformer, folder: str | Path, *, max_positions: int = 1024, search: DecodingOptions = PAPER_OPTIONS
) -> None:
    """Write config.json, generation_config.json and model.safetensors to ``folder``. Token ids do not change.

    `transformers` stores a position table, so sequences are limited to ``max_positions`` tokens (Headway has no limit).
    ``search`` contains the model's search settings.

    Raises:
        ConfigError: The format (MarianMT or Pegasus) does not support an option of the model.
    """
    folder = Path(folder)
    config = model.config
    model_type = "pegasus" if config.norm == "pre" else "marian"
    toolkit = f"Hugging Face's {FAMILIES[model_type].title} (for norm = {config.norm!r})"
    refuse_unsupported(config, toolkit, SUPPORTED[model_type], __name__)
    weights = _as_halves(named_weights(model), config)
    source_size, target_size = len(model.source_embedding.weight), len(model.target_embedding.weight)
    tensors = {theirs: weights[ours] for ours, theirs in tensor_names(config).items()}
    tensors[OUTPUT_BIAS_TENSOR] = weights.get("projection.bias", torch.zeros(target_size)).unsqueeze(0)
    if config.tie == "all":
        tensors["model.shared.weight"] = weights["source_embedding.weight"]
    else:
        tensors["model.encoder.embed_tokens.weight"] = weights["source_embedding.weight"]
        tensors["model.decoder.embed_tokens.weight"] = weights["target_embedding.weight"]
    if config.tie == "none":
        tensors["lm_head.weight"] = weights["projection.weight"]
    if model_type == "pegasus":  # Pegasus computes these tables itself but would report them as missing
        positions = sinusoids(max_positions, config.d_model, interleaved=False)
        tensors |= {f"model.{side}.embed_positions.weight": positions.clone() for side in ("encoder", "decoder")}
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", _config(config, model_type, source_size, target_size, max_positions))
    write_json(folder / "generation_config.json", _generation_config(search, max_positions))


def export_classifier(bundle: ClassifierBundle, folder: str | Path) -> None:
    """Write config.json, model.safetensors and modeling_headway.py into ``folder``.

    No `transformers` architecture has this embedding and pooling, so the folder contains the model's code: a PyTorch
    file of about 200 lines, which is executed by ``from_pretrained(..., trust_remote_code=True)``.

    Raises:
        ConfigError: The exported code does not support an option of the model.
    """
    folder = Path(folder)
    config = cast("ClassifierConfig", bundle.model.config)
    refuse_unsupported(config, "Hugging Face `transformers`", SUPPORTED["classifier"], __name__)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.float() for name, weight in named_weights(bundle.model).items()}
    write_weights(weights, folder / "model.safetensors")
    (folder / _MODELING_FILE.name).write_bytes(_MODELING_FILE.read_bytes())
    labels = dict(enumerate(bundle.labels))
    content = {
        "model_type": "headway_classifier",
        "architectures": ["HeadwayForSequenceClassification"],
        "auto_map": {
            "AutoConfig": "modeling_headway.HeadwayClassifierConfig",
            "AutoModelForSequenceClassification": "modeling_headway.HeadwayForSequenceClassification",
        },
        "classifier": config.as_dict(),
        "vocab_size": bundle.tokenizer.vocab_size,
        "id2label": labels,
        "label2id": {label: index for index, label in labels.items()},
        "problem_type": "single_label_classification",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    write_json(folder / "config.json", content)


def _as_halves(weights: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Permute the weights so that the even dimensions (sines) of the residual stream come before the odd (cosines)."""
    if config.sinusoid_layout == "halves":
        return dict(weights)
    order = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])

    def permuted(name: str, weight: Tensor) -> Tensor:
        module, _, kind = name.rpartition(".")
        if module == "projection" and kind == "bias":
            return weight
        writes = module.endswith(_WRITES_RESIDUAL)
        if kind == "bias":
            return weight[order] if writes or module.endswith("norm") else weight
        return weight[order] if writes or weight.dim() == 1 else weight[:, order]

    return {name: permuted(name, weight) for name, weight in weights.items()}


def _config(
    config: TransformerConfig, model_type: str, source_size: int, target_size: int, max_positions: int
) -> dict[str, Any]:
    two_sides = {"decoder_vocab_size": target_size, "share_encoder_decoder_embeddings": config.tie == "all"}
    return {
        "model_type": model_type,
        "architectures": [FAMILIES[model_type].architecture],
        "is_encoder_decoder": True,
        **{key: getattr(config, option) for key, option in OPTION_NAMES.items()},
        "vocab_size": source_size,
        "max_position_embeddings": max_positions,
        **(two_sides if model_type == "marian" else {}),
        "tie_word_embeddings": config.tie != "none",
        **_SPECIAL_TOKENS,
        "unk_token_id": UNK,
        "forced_eos_token_id": EOS,
    }


def _generation_config(search: DecodingOptions, max_positions: int) -> dict[str, Any]:
    """Return the content of generation_config.json with the settings that are closest to ``search``."""
    return {
        **_SPECIAL_TOKENS,
        "forced_eos_token_id": EOS,
        "suppress_tokens": [PAD, BOS, UNK],
        **to_transformers_search(search, max_positions),
    }
