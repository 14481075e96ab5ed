"""Import a masked language model, or a sequence classifier whose body is one, from `transformers`.

The import includes the weights, the order of the vocabulary, and the names of a classifier's labels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from headway.bundle import build_without_initialization
from headway.errors import BundleError
from headway.interop.huggingface.checkpoint import (
    Checkpoint,
    ModelFamily,
    StoredTensors,
    parse_checked_config,
    read_checkpoint_config,
)
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES, ClassifierFamily
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.tensor_maps import copy_tensors, unchanged_maps
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.weights import named_weights


@dataclass(frozen=True)
class ImportedMaskedModel:
    """An imported masked language model in evaluation mode, and the order of its vocabulary."""

    model: MaskedTransformer
    vocabulary: VocabularyOrder
    family: str


def import_masked(folder: Path, *, pad: int, start: int, end: int, unknown: int) -> ImportedMaskedModel:
    """Import the masked language model in a `transformers` folder.

    Args:
        folder: The `transformers` folder.
        pad: Id of the padding token.
        start: Id of the token before a text.
        end: Id of the token after a text.
        unknown: Id of the unknown token.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    checkpoint = read_checkpoint_config(folder, MASKED_FAMILIES)
    family = checkpoint.family
    tensors = StoredTensors(folder, family.prefix)
    config = parse_checked_config(
        checkpoint, lambda: MaskedConfig.parse(family.options(checkpoint), str(checkpoint.path)), tensors.shapes
    )
    vocabulary = _vocabulary(checkpoint, pad=pad, start=start, end=end, unknown=unknown)
    projection = f"{family.projection}.weight"
    tied = checkpoint["tie_word_embeddings"] and (
        projection not in tensors
        or (family.embedding in tensors and torch.equal(tensors[projection], tensors[family.embedding]))
    )
    config = config.model_copy(update={"tie": "target" if tied else "none"})
    model = cast("MaskedTransformer", build_without_initialization(config, len(vocabulary), len(vocabulary)))
    weights = named_weights(model)
    own_bias = f"{family.projection}.bias"  # a tied projection uses ``family.bias`` instead
    bias = own_bias if own_bias in tensors and not tied else family.bias
    tables = {family.embedding: "embedding.weight", bias: "projection.bias"}
    if not tied:
        tables[projection] = "projection.weight"
    ignored = re.compile(rf"{re.escape(family.projection)}\.(weight|bias)|{re.escape(family.bias)}|{family.ignored}")
    copy_tensors(tensors, weights, family.tensors(config), tables, vocabulary, ignored, family.title)
    return ImportedMaskedModel(model.eval(), vocabulary, family.title)


@dataclass(frozen=True)
class ImportedClassifier:
    """An imported sequence classifier in evaluation mode, the order of its vocabulary, and its ordered labels."""

    model: SequenceClassifier
    vocabulary: VocabularyOrder
    labels: tuple[str, ...]
    family: str


def import_sequence_classifier(folder: Path, *, pad: int, start: int, end: int, unknown: int) -> ImportedClassifier:
    """Import the classifier in a `transformers` folder. See :func:`import_masked` for the arguments.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    checkpoint = read_checkpoint_config(folder, CLASSIFIER_FAMILIES)
    family, labels = checkpoint.family, _labels(checkpoint)
    tensors, ignored = StoredTensors(folder, family.body.prefix), re.compile(family.ignored)
    config = parse_checked_config(
        checkpoint,
        lambda: SequenceClassifierConfig.parse(family.options(checkpoint), str(checkpoint.path)),
        tensors.shapes,
    )
    assert isinstance(config.body, MaskedConfig)
    vocabulary = _vocabulary(checkpoint, pad=pad, start=start, end=end, unknown=unknown)
    model = cast("SequenceClassifier", build_without_initialization(config, len(vocabulary), len(labels)))
    weights = {name.removeprefix("body."): weight for name, weight in named_weights(model).items()}
    if checkpoint["classifier_bias"] is False:  # ModernBERT's dense layer
        weights.pop("dense.bias").zero_()
    maps = [*family.body.tensors(config.body), *unchanged_maps(family.head)]
    tables = {family.body.embedding: "embedding.weight"}
    copy_tensors(tensors, weights, maps, tables, vocabulary, ignored, family.title)
    return ImportedClassifier(model.eval(), vocabulary, labels, family.title)


def _labels(checkpoint: Checkpoint[ClassifierFamily]) -> tuple[str, ...]:
    """Return the labels in the order of the logits. Labels without names are called LABEL_0, LABEL_1, ..."""
    problem, names = checkpoint["problem_type"], checkpoint["id2label"]
    if problem not in (None, "single_label_classification"):
        raise checkpoint.bundle_error(
            f"problem_type = {problem!r} is not supported; expected 'single_label_classification': one label per text"
        )
    if not names:
        given = [key for key in ("num_labels", "_num_labels") if checkpoint[key] is not None]
        count = checkpoint.positive_int(given[0]) if given else _DEFAULT_LABELS
        names = {str(index): f"LABEL_{index}" for index in range(count)}
    if not isinstance(names, dict) or names.keys() != {str(index) for index in range(len(names))}:
        raise checkpoint.bundle_error(f"id2label = {names!r}: expected a name for each number from 0")
    labels = tuple(str(names[str(index)]) for index in range(len(names)))
    if len(labels) == 1:
        raise checkpoint.bundle_error("a model with one label predicts a number (regression), which is not supported")
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise checkpoint.bundle_error(f"id2label contains the name {twice[0]!r} twice; rename one of the two labels")
    return labels


_DEFAULT_LABELS = 2  # `transformers`' default number of labels


def _vocabulary(
    checkpoint: Checkpoint[ModelFamily], *, pad: int, start: int, end: int, unknown: int
) -> VocabularyOrder:
    size = checkpoint.positive_int("vocab_size")
    try:
        return VocabularyOrder.from_special_ids(size, pad=pad, start=start, end=end, unknown=unknown)
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None
