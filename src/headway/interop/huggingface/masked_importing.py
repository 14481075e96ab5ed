"""Import a masked language model of `transformers`: its weights and the order of its vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from headway.bundle import build_without_initialization, named_weights
from headway.errors import BundleError
from headway.interop.huggingface.checkpoint import StoredTensors, read_checkpoint_config
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.tensor_maps import copy_tensors
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.masked import MaskedConfig, MaskedTransformer


@dataclass(frozen=True)
class ImportedMaskedModel:
    """An imported masked language model in evaluation mode, and the order of its vocabulary."""

    model: MaskedTransformer
    vocabulary: VocabularyOrder
    family: str


def import_masked(folder: Path, *, pad: int, start: int, end: int, unknown: int) -> ImportedMaskedModel:
    """Import the model of a `transformers` folder.

    Args:
        folder: The folder.
        pad: Id of the padding token.
        start: Id of the token before a text.
        end: Id of the token after a text.
        unknown: Id of the unknown token.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    checkpoint = read_checkpoint_config(folder, MASKED_FAMILIES)
    family = checkpoint.family
    checkpoint.refuse_unknown_keys()
    config = MaskedConfig.parse(family.options(checkpoint), str(checkpoint.path))
    try:
        vocabulary = VocabularyOrder.from_special_ids(
            checkpoint.positive_int("vocab_size"), pad=pad, start=start, end=end, unknown=unknown
        )
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None
    tensors = StoredTensors(folder, family.prefix)
    projection = f"{family.projection}.weight"
    tied = projection not in tensors or (
        checkpoint["tie_word_embeddings"]
        and family.embedding in tensors
        and torch.equal(tensors[projection], tensors[family.embedding])
    )
    config = config.model_copy(update={"tie": "target" if tied else "none"})
    model = cast("MaskedTransformer", build_without_initialization(config, len(vocabulary), len(vocabulary)))
    weights = named_weights(model)
    own_bias = f"{family.projection}.bias"  # if tied, it is the other one
    bias = own_bias if own_bias in tensors and not tied else family.bias
    tables = {family.embedding: "embedding.weight", bias: "projection.bias"}
    if not tied:
        tables[projection] = "projection.weight"
    ignored = re.compile(rf"{re.escape(family.projection)}\.(weight|bias)|{re.escape(family.bias)}|{family.ignored}")
    copy_tensors(tensors, weights, family.tensors(config), tables, vocabulary, ignored, family.title)
    return ImportedMaskedModel(model.eval(), vocabulary, family.title)
