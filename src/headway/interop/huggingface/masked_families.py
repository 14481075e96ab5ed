"""The `transformers` families of encoders that Headway's masked language model can represent, and how they differ.

             norm   positions                             segments   biases
BERT         post   learned                               yes        all
RoBERTa      post   learned, after two unused rows        yes        all
DistilBERT   post   learned                               no         all
ModernBERT   pre    rotary, two bases; windows alternate  no         only the output projection
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.interop.huggingface.causal_families import ACTIVATIONS, GATED_ACTIVATIONS, read_activation
from headway.interop.huggingface.checkpoint import Checkpoint, ModelFamily
from headway.interop.huggingface.tensor_maps import TensorMap, permute_heads, rotary_unit_order, unchanged_maps
from headway.models.masked import MaskedConfig


@dataclass(frozen=True, kw_only=True)
class MaskedFamily(ModelFamily):
    """Properties of a family of masked language models.

    Attributes:
        pretraining_class: Name of another `transformers` class whose weights contain the prediction head.
        fixed: Keys of config.json that affect the result, with the only supported value of each.
        options: Function that returns the options of :class:`MaskedConfig` for a checkpoint.
        tensors: Function that yields the family's tensors for a config, except the embedding and the output projection.
        prefix: Prefix of the encoder's tensor names.
        embedding: Tensor name of the embedding.
        projection: Tensor name of the output projection, if it is stored, without ".weight".
        bias: Tensor name of the output projection's bias.
        ignored: Pattern of the names of tensors that are not needed.
    """

    pretraining_class: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[Checkpoint[ModelFamily]], dict[str, Any]]
    tensors: Callable[[MaskedConfig], Iterator[TensorMap]]
    prefix: str
    embedding: str
    projection: str
    bias: str
    ignored: str = r".*position_ids"

    @property
    def alternative_architecture(self) -> str:
        """Name of another `transformers` class that is accepted: the one for pretraining."""
        return self.pretraining_class

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """Keys of config.json for which the family supports only one value, and this value."""
        return self.fixed


_UNUSED_POSITIONS = (
    2  # rows at the start of RoBERTa's table, because positions begin after the padding token's id, which is 1
)


def _bert_options(checkpoint: Checkpoint[ModelFamily], *, unused_positions: int = 0) -> dict[str, Any]:
    return {
        "d_model": checkpoint.positive_int("hidden_size"),
        "num_heads": checkpoint.positive_int("num_attention_heads"),
        "d_ff": checkpoint.positive_int("intermediate_size"),
        "encoder_layers": checkpoint.positive_int("num_hidden_layers"),
        "max_length": checkpoint.positive_int("max_position_embeddings") - unused_positions,
        "num_segments": checkpoint.positive_int("type_vocab_size"),
        "activation": read_activation(checkpoint, "hidden_act", ACTIVATIONS),
        "norm_epsilon": checkpoint["layer_norm_eps"],
        "dropout": checkpoint["hidden_dropout_prob"],
        "attention_dropout": checkpoint["attention_probs_dropout_prob"],
    }


def _distilbert_options(checkpoint: Checkpoint[ModelFamily]) -> dict[str, Any]:
    return {
        "d_model": checkpoint.positive_int("dim"),
        "num_heads": checkpoint.positive_int("n_heads"),
        "d_ff": checkpoint.positive_int("hidden_dim"),
        "encoder_layers": checkpoint.positive_int("n_layers"),
        "max_length": checkpoint.positive_int("max_position_embeddings"),
        "activation": read_activation(checkpoint, "activation", ACTIVATIONS),
        "norm_epsilon": 1e-12,
        "dropout": checkpoint["dropout"],
        "attention_dropout": checkpoint["attention_dropout"],
    }


def modernbert_options(checkpoint: Checkpoint[ModelFamily]) -> dict[str, Any]:
    """Return the options of :class:`MaskedConfig` for ModernBERT with any head."""
    layers = checkpoint.positive_int("num_hidden_layers")
    every = checkpoint.positive_int("global_attn_every_n_layers")
    expected = ["full_attention" if layer % every == 0 else "sliding_attention" for layer in range(layers)]
    if checkpoint["layer_types"] not in (None, expected):
        raise checkpoint.bundle_error(
            f"layer_types is not supported; expected full_attention in every {every}. layer, beginning with the first, "
            "and sliding_attention in the others"
        )
    settings = checkpoint["rope_parameters"] or {}
    bases = {"full_attention": checkpoint["global_rope_theta"], "sliding_attention": checkpoint["local_rope_theta"]}
    for kind in bases:
        rotary = dict(settings.get(kind) or {})
        bases[kind] = rotary.pop("rope_theta", bases[kind])
        if rotary.pop("rope_type", "default") != "default" or rotary:
            raise checkpoint.bundle_error(f"rope_parameters of {kind} = {settings[kind]} are not supported")
    windows = {
        "local_rotary_base": bases["sliding_attention"],
        "encoder_window": 2 * (checkpoint.positive_int("local_attention") // 2) + 1,
        "global_every": every,
    }
    return {
        "d_model": checkpoint.positive_int("hidden_size"),
        "num_heads": checkpoint.positive_int("num_attention_heads"),
        "d_ff": checkpoint.positive_int("intermediate_size"),
        "encoder_layers": layers,
        "max_length": checkpoint.positive_int("max_position_embeddings"),
        "activation": read_activation(checkpoint, "hidden_activation", GATED_ACTIVATIONS),
        "norm": "pre",
        "norm_epsilon": checkpoint["norm_eps"],
        "bias": "none",
        "positions": "rotary",
        "rotary_base": bases["full_attention"],
        **({} if every == 1 else windows),
        "dropout": checkpoint["mlp_dropout"],
        "attention_dropout": checkpoint["attention_dropout"],
    }


def _modernbert_masked_options(checkpoint: Checkpoint[ModelFamily]) -> dict[str, Any]:
    if checkpoint["classifier_activation"] != checkpoint["hidden_activation"]:
        raise checkpoint.bundle_error(
            f"classifier_activation = {checkpoint['classifier_activation']!r} is not supported; expected "
            f"{checkpoint['hidden_activation']!r}, as in the blocks"
        )
    return modernbert_options(checkpoint)


_BERT_BLOCK = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_residual.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.outer",
    "output.LayerNorm": "feed_forward_residual.norm",
}
_DISTILBERT_BLOCK = {
    "attention.q_lin": "attention.query",
    "attention.k_lin": "attention.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "sa_layer_norm": "attention_residual.norm",
    "ffn.lin1": "feed_forward.inner",
    "ffn.lin2": "feed_forward.outer",
    "output_layer_norm": "feed_forward_residual.norm",
}


def _bert_tensors(
    config: MaskedConfig,
    *,
    prefix: str,
    layers: str = "encoder.layer",
    block: Mapping[str, str] = _BERT_BLOCK,
    head: Sequence[str],
    unused_positions: int = 0,
) -> Iterator[TensorMap]:
    """Yield the tensors of BERT and related families. ``head`` names the head's dense layer and norm."""
    yield TensorMap(
        f"{prefix}.embeddings.position_embeddings.weight",
        ("positions.table",),
        lambda table: [table[unused_positions:]],
        lambda tables: torch.cat([tables[0].new_zeros(unused_positions, config.d_model), tables[0]]),
    )
    yield TensorMap(f"{prefix}.embeddings.token_type_embeddings.weight", ("segment_embedding.weight",))
    dense, norm = head
    modules = {f"{prefix}.embeddings.LayerNorm": "embedding_norm", dense: "head.dense", norm: "head.norm"}
    for layer in range(config.encoder_layers):
        for theirs, ours in block.items():
            modules[f"{prefix}.{layers}.{layer}.{theirs}"] = f"encoder.blocks.{layer}.{ours}"
    yield from unchanged_maps(modules)


def _modernbert_tensors(config: MaskedConfig) -> Iterator[TensorMap]:
    order = rotary_unit_order(config.d_model // config.num_heads, 1.0)
    modules = {
        "model.embeddings.norm": "embedding_norm",
        "model.final_norm": "encoder.norm",
        "head.dense": "head.dense",
        "head.norm": "head.norm",
    }
    for layer in range(config.encoder_layers):
        theirs, ours = f"model.layers.{layer}", f"encoder.blocks.{layer}"
        modules[f"{theirs}.attn_norm"] = f"{ours}.attention_residual.norm"
        modules[f"{theirs}.mlp_norm"] = f"{ours}.feed_forward_residual.norm"
        modules[f"{theirs}.attn.Wo"] = f"{ours}.attention.output"
        modules[f"{theirs}.mlp.Wo"] = f"{ours}.feed_forward.outer"
        yield TensorMap(
            f"{theirs}.attn.Wqkv.weight",
            tuple(f"{ours}.attention.{part}.weight" for part in ("query", "key", "value")),
            partial(_divided, order),
            partial(_joined, order.argsort()),
        )
        yield TensorMap(
            f"{theirs}.mlp.Wi.weight",
            (f"{ours}.feed_forward.gate.weight", f"{ours}.feed_forward.inner.weight"),
            lambda tensor: tensor.chunk(2),
            lambda parts: torch.cat(list(parts)),
        )
    yield from unchanged_maps(modules)


def _divided(order: Tensor, tensor: Tensor) -> Sequence[Tensor]:
    query, key, value = tensor.chunk(3)
    return permute_heads(order, query), permute_heads(order, key), value


def _joined(order: Tensor, parts: Sequence[Tensor]) -> Tensor:
    query, key, value = parts
    return torch.cat([permute_heads(order, query), permute_heads(order, key), value])


_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True}
_BERT: dict[str, Any] = {
    **_TOKENS,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_FIXED = {"position_embedding_type": "absolute", "add_cross_attention": False, "is_decoder": False}

MASKED_FAMILIES: dict[str, MaskedFamily] = {
    "bert": MaskedFamily(
        title="BERT",
        architecture="BertForMaskedLM",
        pretraining_class="BertForPreTraining",
        defaults=_BERT,
        fixed=_FIXED,
        options=_bert_options,
        tensors=partial(
            _bert_tensors,
            prefix="bert",
            head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
        ),
        prefix="bert.",
        embedding="bert.embeddings.word_embeddings.weight",
        projection="cls.predictions.decoder",
        bias="cls.predictions.bias",
        ignored=r".*position_ids|bert\.pooler\..*|cls\.seq_relationship\..*",
    ),
    "roberta": MaskedFamily(
        title="RoBERTa",
        architecture="RobertaForMaskedLM",
        pretraining_class="RobertaForMaskedLM",
        defaults={**_BERT, "vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        fixed={**_FIXED, "hidden_act": "gelu", "pad_token_id": 1},
        options=partial(_bert_options, unused_positions=_UNUSED_POSITIONS),
        tensors=partial(
            _bert_tensors,
            prefix="roberta",
            head=("lm_head.dense", "lm_head.layer_norm"),
            unused_positions=_UNUSED_POSITIONS,
        ),
        prefix="roberta.",
        embedding="roberta.embeddings.word_embeddings.weight",
        projection="lm_head.decoder",
        bias="lm_head.bias",
        ignored=r".*position_ids|roberta\.pooler\..*",
    ),
    "distilbert": MaskedFamily(
        title="DistilBERT",
        architecture="DistilBertForMaskedLM",
        pretraining_class="DistilBertForMaskedLM",
        defaults={
            **_TOKENS,
            "vocab_size": 30522,
            "dim": 768,
            "n_layers": 6,
            "n_heads": 12,
            "hidden_dim": 3072,
            "activation": "gelu",
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "max_position_embeddings": 512,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "tie_weights_": True,
        },
        fixed={"sinusoidal_pos_embds": False},
        options=_distilbert_options,
        tensors=partial(
            _bert_tensors,
            prefix="distilbert",
            layers="transformer.layer",
            block=_DISTILBERT_BLOCK,
            head=("vocab_transform", "vocab_layer_norm"),
        ),
        prefix="distilbert.",
        embedding="distilbert.embeddings.word_embeddings.weight",
        projection="vocab_projector",
        bias="vocab_projector.bias",
    ),
    "modernbert": MaskedFamily(
        title="ModernBERT",
        architecture="ModernBertForMaskedLM",
        pretraining_class="ModernBertForMaskedLM",
        defaults={
            **_TOKENS,
            "vocab_size": 50368,
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "classifier_pooling": "cls",
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
            "rope_parameters": None,
            "layer_types": None,
            "local_attention": 128,
            "attention_dropout": 0.0,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
            "initializer_cutoff_factor": 2.0,
            "sparse_pred_ignore_index": -100,
            "sparse_prediction": False,
            "cls_token_id": None,
            "gradient_checkpointing": False,
            "reference_compile": None,
            "repad_logits_with_grad": False,
            "position_embedding_type": "absolute",
            "layer_norm_eps": 1e-5,
            "deterministic_flash_attn": False,
        },
        fixed={
            "attention_bias": False,
            "mlp_bias": False,
            "norm_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
        },
        options=_modernbert_masked_options,
        tensors=_modernbert_tensors,
        prefix="model.",
        embedding="model.embeddings.tok_embeddings.weight",
        projection="decoder",
        bias="decoder.bias",
    ),
}
