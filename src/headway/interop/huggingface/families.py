"""The `transformers` families of encoder-decoders that Headway can represent, and how they differ.

All of them are derived from fairseq's or Marian's Transformer, and their weights have the same names
(:func:`tensor_names`). They differ in:

              norm   embeddings + positions                        output bias
    MarianMT  post   sinusoids in halves                           yes
    M2M-100   pre    sinusoids in halves, inclusive, offset        no
    BART      post   learned, then a layer norm                    yes
    mBART     pre    learned, then a layer norm                    yes
    FSMT      post   sinusoids in halves, inclusive, offset        no
    Pegasus   pre    sinusoids in halves                           yes

fairseq's first position is the id of the padding token plus 1, hence the offset. The tables of BART and mBART begin
with two unused rows, which are dropped. NLLB is M2M-100 with different weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.interop.huggingface.checkpoint import ModelFamily
from headway.models.transformer import TransformerConfig
from headway.nn.block_config import Activation

ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
OUTPUT_BIAS_TENSOR = "final_logits_bias"
OPTION_NAMES = {  # key of config.json: option of TransformerConfig
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

# Keys without a default that the importer uses.
_READ = frozenset(
    {
        "bad_words_ids",
        "bos_token_id",
        "decoder_start_token_id",
        "decoder_vocab_size",
        "force_bos_token_to_be_generated",
        "forced_bos_token_id",
    }
)
# Keys that do not affect the logits or are redundant, because the tensors show their values.
_WITHOUT_EFFECT = frozenset(
    {
        "add_bias_logits",
        "add_final_layer_norm",
        "classif_dropout",
        "decoder",  # repeats FSMT's target vocabulary size
        "decoder_layerdrop",
        "encoder_layerdrop",
        "extra_pos_embeddings",
        "init_std",
        "langs",
        "normalize_embedding",
        "num_hidden_layers",
        "save_step",
        "student_decoder_layers",
        "student_encoder_layers",
    }
)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderFamily(ModelFamily):
    """Properties of a family of encoder-decoder models.

    Attributes:
        model_options: Options of :class:`TransformerConfig` that all models of the family have in common.
        unknown_id: Id of the unknown token, which config.json does not contain. None means that it is read from
            vocab.json.
        has_output_bias: Whether models have a ``final_logits_bias``.
        output_tensor_name: Tensor name of an output projection that is not tied to an embedding.
        has_shared_table: Whether a table shared by source and target has its own tensor name.
    """

    model_options: Mapping[str, Any]
    unknown_id: int | None = None
    has_output_bias: bool = True
    output_tensor_name: str = "lm_head.weight"
    has_shared_table: bool = True
    further_keys: frozenset[str] = _READ | _WITHOUT_EFFECT

    @property
    def alternative_architecture(self) -> str:
        """Name of another `transformers` class that is accepted: the one without the task's output layer."""
        return f"{self.architecture.removesuffix('ForConditionalGeneration').removesuffix('MTModel')}Model"

    @property
    def fixed_options(self) -> dict[str, bool]:
        """Old options in config.json for which the family supports only one value, and this value.

        Other old options, such as ``add_final_layer_norm``, are not checked: they are redundant, because the tensors
        show their values, and not always correct.
        """
        sinusoidal = self.model_options["positions"] == "sinusoidal"
        return {"normalize_before": self.model_options["norm"] == "pre", "static_position_embeddings": sinusoidal}

    @property
    def positions_start_after_padding(self) -> bool:
        """Whether the first position is the padding token's id plus 1 (fairseq's sinusoids)."""
        return self.model_options.get("sinusoid_spacing") == "inclusive"


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

FAMILIES: dict[str, EncoderDecoderFamily] = {
    "marian": EncoderDecoderFamily(
        title="MarianMT",
        architecture="MarianMTModel",
        defaults=dict(_COMMON, vocab_size=58101, pad_token_id=58100, decoder_start_token_id=58100, eos_token_id=0),
        model_options=dict(_HALVES, norm="post"),
    ),
    "m2m_100": EncoderDecoderFamily(
        title="M2M-100",
        architecture="M2M100ForConditionalGeneration",
        defaults=dict(_RELU, vocab_size=128112, attention_dropout=0.1),
        model_options=dict(_HALVES, norm="pre", sinusoid_spacing="inclusive"),
        unknown_id=3,
        has_output_bias=False,
    ),
    "bart": EncoderDecoderFamily(
        title="BART",
        architecture="BartForConditionalGeneration",
        defaults=dict(_FAIRSEQ, decoder_start_token_id=2),
        model_options=dict(_LEARNED, norm="post"),
        unknown_id=3,
    ),
    "mbart": EncoderDecoderFamily(
        title="mBART",
        architecture="MBartForConditionalGeneration",
        defaults=_FAIRSEQ,
        model_options=dict(_LEARNED, norm="pre"),
        unknown_id=3,
    ),
    "fsmt": EncoderDecoderFamily(
        title="FSMT",
        architecture="FSMTForConditionalGeneration",
        defaults=dict(_RELU, src_vocab_size=42024, tgt_vocab_size=42024, tie_word_embeddings=False),
        model_options=dict(_HALVES, norm="post", sinusoid_spacing="inclusive"),
        unknown_id=3,
        has_output_bias=False,
        output_tensor_name="model.decoder.output_projection.weight",
        has_shared_table=False,
    ),
    "pegasus": EncoderDecoderFamily(
        title="Pegasus",
        architecture="PegasusForConditionalGeneration",
        defaults=dict(_COMMON, pad_token_id=0, decoder_start_token_id=0, eos_token_id=1),
        model_options=dict(_HALVES, norm="pre"),
        unknown_id=105,
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
    """Map Headway's weight names to `transformers`' tensor names.

    Embeddings and the output projection are not included, because they may be stored as one or several tensors.
    """
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


def embedding_tensor_names(
    family: EncoderDecoderFamily, *, tied: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the possible tensor names of the source embedding, the target embedding and the output projection.

    The first name that exists is used. If the tables are ``tied``, some names may be missing in the file. Before
    `transformers` 5, FSMT's output projection was always the target embedding, regardless of ``tied``.
    """
    source, target, shared = (
        f"model.{part}.weight" for part in ("encoder.embed_tokens", "decoder.embed_tokens", "shared")
    )
    if not family.has_shared_table:
        return (source, target) if tied else (source,), (target,), (family.output_tensor_name, target)
    output = (family.output_tensor_name, target, shared) if tied else (family.output_tensor_name,)
    return (source, shared), (target, shared), output
