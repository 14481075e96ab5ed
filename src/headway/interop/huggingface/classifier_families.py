"""The `transformers` sequence classifiers that Headway can represent: a head on the body of a masked language model.

             pooling         dense layer        norm
BERT         first           tanh (its pooler)  no
RoBERTa      first           tanh               no
DistilBERT   first           ReLU               no
ModernBERT   first or mean   GELU               yes

In RoBERTa, dropout is also applied before the dense layer during training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headway.interop.huggingface.causal_families import read_activation
from headway.interop.huggingface.checkpoint import Checkpoint, ModelFamily
from headway.interop.huggingface.masked_families import (
    MASKED_FAMILIES,
    MaskedFamily,
    modernbert_options,
)

HEAD_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "tanh": "tanh"}  # activations of ModernBERT's head
POOLINGS = {"cls": "first", "mean": "mean"}


@dataclass(frozen=True, kw_only=True)
class ClassifierFamily(ModelFamily):
    """Properties of a family of sequence classifiers.

    Attributes:
        body: The family of masked language models with the same body.
        fixed: Keys of config.json that affect the result, with the only supported value of each. Default: the body's
            ``fixed``.
        options: Function that returns the options of :class:`SequenceClassifierConfig` for a checkpoint.
        head: For each module of the head, the family's name and Headway's name.
        ignored: Pattern of the names of tensors that are not needed.
    """

    body: MaskedFamily
    fixed: Mapping[str, Any] | None = None
    options: Callable[[Checkpoint[ModelFamily]], dict[str, Any]]
    head: Mapping[str, str]
    ignored: str = r".*position_ids"

    @property
    def alternative_architecture(self) -> str:
        """Equal to ``architecture``, because a model without its head is not a classifier."""
        return self.architecture

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """Keys of config.json for which the family supports only one value, and this value."""
        return self.body.fixed if self.fixed is None else self.fixed


def _options(
    checkpoint: Checkpoint[ModelFamily],
    *,
    body: Callable[[Checkpoint[ModelFamily]], dict[str, Any]],
    dense: str,
    dropout: tuple[str, ...] = ("classifier_dropout", "hidden_dropout_prob"),
) -> dict[str, Any]:
    """Return the options of a classifier that pools the first position. The dropout is the value of the first key in
    ``dropout`` that is set.
    """
    return {
        "body": {"kind": "masked", **body(checkpoint)},
        "pooling": "first",
        "pooled_dropout": next(checkpoint[key] for key in dropout if checkpoint[key] is not None),
        "dense": dense,
    }


def _modernbert_options(checkpoint: Checkpoint[ModelFamily]) -> dict[str, Any]:
    pooling = checkpoint["classifier_pooling"]
    if pooling not in POOLINGS:
        raise checkpoint.bundle_error(
            f"classifier_pooling = {pooling!r} is not supported; supported: {', '.join(POOLINGS)}"
        )
    return {
        "body": {"kind": "masked", **modernbert_options(checkpoint)},
        "pooling": POOLINGS[pooling],
        "pooled_dropout": checkpoint["classifier_dropout"],
        "dense": read_activation(checkpoint, "classifier_activation", HEAD_ACTIVATIONS),
        "dense_norm": True,
    }


_BERT, _ROBERTA, _DISTILBERT, _MODERNBERT = (
    MASKED_FAMILIES[name] for name in ("bert", "roberta", "distilbert", "modernbert")
)
CLASSIFIER_FAMILIES: dict[str, ClassifierFamily] = {
    "bert": ClassifierFamily(
        title="BERT",
        architecture="BertForSequenceClassification",
        defaults=_BERT.defaults,
        body=_BERT,
        options=partial(_options, body=_BERT.options, dense="tanh"),
        head={"bert.pooler.dense": "dense", "classifier": "projection"},
    ),
    "roberta": ClassifierFamily(
        title="RoBERTa",
        architecture="RobertaForSequenceClassification",
        defaults=_ROBERTA.defaults,
        body=_ROBERTA,
        options=partial(_options, body=_ROBERTA.options, dense="tanh"),
        head={"classifier.dense": "dense", "classifier.out_proj": "projection"},
        ignored=r".*position_ids|roberta\.pooler\..*",
    ),
    "distilbert": ClassifierFamily(
        title="DistilBERT",
        architecture="DistilBertForSequenceClassification",
        defaults=_DISTILBERT.defaults,
        body=_DISTILBERT,
        options=partial(_options, body=_DISTILBERT.options, dense="relu", dropout=("seq_classif_dropout",)),
        head={"pre_classifier": "dense", "classifier": "projection"},
    ),
    "modernbert": ClassifierFamily(
        title="ModernBERT",
        architecture="ModernBertForSequenceClassification",
        defaults={**_MODERNBERT.defaults, "classifier_dropout": 0.0, "classifier_bias": False, "decoder_bias": True},
        body=_MODERNBERT,
        fixed=dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), False),
        options=_modernbert_options,
        head={"head.dense": "dense", "head.norm": "dense_norm", "classifier": "projection"},
    ),
}
