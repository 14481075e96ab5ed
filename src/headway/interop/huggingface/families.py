"""Model families of `transformers` that are Transformers like ours, and their differences.

All descend from fairseq's or Marian's Transformer and name their weights alike (:func:`tensor_names`). They differ in:

              norm   embeddings + positions                        output bias
    MarianMT  post   sinusoids in halves                           yes
    M2M-100   pre    sinusoids in halves, inclusive, offset        no
    BART      post   learned, then a layer norm                    yes
    mBART     pre    learned, then a layer norm                    yes
    FSMT      post   sinusoids in halves, inclusive, offset        no
    Pegasus   pre    sinusoids in halves                           yes

fairseq's positions begin after the id of its padding token, hence the offset. The tables of BART and mBART begin with
two unused rows, which are dropped. NLLB is M2M-100 with other weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.models.transformer import TransformerConfig
from headway.nn.blocks import Activation

ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
OUTPUT_BIAS = "final_logits_bias"
OPTIONS = {  # key of config.json: our option
    "d_model": "d_model",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
    "scale_embedding": "scale_embedding",
    "activation_function": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "feed_forward_dropout",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Properties of a model family.

    Attributes:
        title: The family's name in messages.
        architecture: The `transformers` class that translates.
        defaults: Values of keys that config.json leaves out.
        model: Its options of :class:`TransformerConfig`.
        unknown: The id of the unknown token, which config.json lacks. None means that vocab.json contains it.
        output_bias: Whether there is a ``final_logits_bias``.
        output: Name of the output projection if it is a separate tensor.
        shared: Whether a table shared by both sides has its own name.
    """

    title: str
    architecture: str
    defaults: Mapping[str, Any]
    model: Mapping[str, Any]
    unknown: int | None = None
    output_bias: bool = True
    output: str = "lm_head.weight"
    shared: bool = True

    @property
    def base(self) -> str:
        """The `transformers` class without an output projection."""
        return f"{self.architecture.removesuffix('ForConditionalGeneration').removesuffix('MTModel')}Model"

    @property
    def fixed(self) -> dict[str, bool]:
        """Old options of which the family supports one value. Other options of that age (``add_final_layer_norm``) only
        repeat what the tensors say, and are not always right.
        """
        sinusoidal = self.model["positions"] == "sinusoidal"
        return {"normalize_before": self.model["norm"] == "pre", "static_position_embeddings": sinusoidal}

    @property
    def positions_start_after_padding(self) -> bool:
        """Whether positions begin after the id of the padding token (fairseq's sinusoids)."""
        return self.model.get("sinusoid_spacing") == "inclusive"


_COMMON: dict[str, Any] = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "vocab_size": 50265,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
}
_FAIRSEQ: dict[str, Any] = {**_COMMON, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_RELU: dict[str, Any] = {
    **_FAIRSEQ,
    "activation_function": "relu",
    "scale_embedding": True,
    "decoder_start_token_id": 2,
}
_HALVES: dict[str, Any] = {"positions": "sinusoidal", "sinusoid_layout": "halves"}
_LEARNED: dict[str, Any] = {"positions": "learned", "embedding_norm": True}

FAMILIES: dict[str, Family] = {
    "marian": Family(
        title="MarianMT",
        architecture="MarianMTModel",
        defaults=dict(_COMMON, vocab_size=58101, pad_token_id=58100, decoder_start_token_id=58100, eos_token_id=0),
        model=dict(_HALVES, norm="post"),
    ),
    "m2m_100": Family(
        title="M2M-100",
        architecture="M2M100ForConditionalGeneration",
        defaults=dict(_RELU, vocab_size=128112, attention_dropout=0.1),
        model=dict(_HALVES, norm="pre", sinusoid_spacing="inclusive"),
        unknown=3,
        output_bias=False,
    ),
    "bart": Family(
        title="BART",
        architecture="BartForConditionalGeneration",
        defaults=dict(_FAIRSEQ, decoder_start_token_id=2),
        model=dict(_LEARNED, norm="post"),
        unknown=3,
    ),
    "mbart": Family(
        title="mBART",
        architecture="MBartForConditionalGeneration",
        defaults=_FAIRSEQ,
        model=dict(_LEARNED, norm="pre"),
        unknown=3,
    ),
    "fsmt": Family(
        title="FSMT",
        architecture="FSMTForConditionalGeneration",
        defaults=dict(_RELU, src_vocab_size=42024, tgt_vocab_size=42024, tie_word_embeddings=False),
        model=dict(_HALVES, norm="post", sinusoid_spacing="inclusive"),
        unknown=3,
        output_bias=False,
        output="model.decoder.output_projection.weight",
        shared=False,
    ),
    "pegasus": Family(
        title="Pegasus",
        architecture="PegasusForConditionalGeneration",
        defaults=dict(_COMMON, pad_token_id=0, decoder_start_token_id=0, eos_token_id=1),
        model=dict(_HALVES, norm="pre"),
        unknown=105,
    ),
}

_ENCODER_BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_DECODER_BLOCK = {
    **_ENCODER_BLOCK,
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
}


def tensor_names(config: TransformerConfig) -> dict[str, str]:
    """Map our weight names to theirs, except embeddings and output, which may be one tensor or several."""
    modules = {}
    sides = (("encoder", config.encoder_layers, _ENCODER_BLOCK), ("decoder", config.decoder_layers, _DECODER_BLOCK))
    for side, layers, block in sides:
        for layer in range(layers):
            for ours, theirs in block.items():
                modules[f"{side}.blocks.{layer}.{ours}"] = f"model.{side}.layers.{layer}.{theirs}"
        if config.norm == "pre":
            modules[f"{side}.norm"] = f"model.{side}.layer_norm"
    if config.embedding_norm:
        modules["source_norm"] = "model.encoder.layernorm_embedding"
        modules["target_norm"] = "model.decoder.layernorm_embedding"
    names = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in modules.items() for kind in ("weight", "bias")}
    if config.positions == "learned":
        names["source_positions.table"] = "model.encoder.embed_positions.weight"
        names["target_positions.table"] = "model.decoder.embed_positions.weight"
    return names


def table_names(family: Family, *, tied: bool) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the possible names of source embedding, target embedding and output projection.

    The first name that exists is used. If the tables are ``tied``, some may be missing in the file. Before
    `transformers` 5, FSMT's output projection was always the target embedding, whatever ``tied`` is.
    """
    source, target, shared = (
        f"model.{part}.weight" for part in ("encoder.embed_tokens", "decoder.embed_tokens", "shared")
    )
    if not family.shared:
        return (source, target) if tied else (source,), (target,), (family.output, target)
    output = (family.output, target, shared) if tied else (family.output,)
    return (source, shared), (target, shared), output
