"""Import a decoder-only model from `transformers`: its weights and the order of its vocabulary.

Every tensor and every key of config.json must be known. Tensors are read and copied to the model one by one, so the
peak memory is the size of the model plus one tensor, regardless of the number of files. Weights of any floating-point
type become float32. The settings of ``generate()`` and of weight initialization are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from headway.bundle import build_without_initialization
from headway.errors import BundleError
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES, CausalFamily
from headway.interop.huggingface.checkpoint import (
    Checkpoint,
    StoredTensors,
    parse_checked_config,
    read_checkpoint_config,
)
from headway.interop.huggingface.importing import NEVER_GENERATED_BIAS
from headway.interop.huggingface.tensor_maps import copy_tensors
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.weights import named_weights

# Buffers in older files: causal masks and rotary frequencies.
_BUFFERS = r".*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq"


@dataclass(frozen=True)
class ImportedLanguageModel:
    """An imported language model in evaluation mode, the order of its vocabulary, and its end tokens.

    ``end_ids`` contains the Headway ids of the tokens that end a text, EOS first.
    """

    model: DecoderOnly
    vocabulary: VocabularyOrder
    end_ids: tuple[int, ...]
    family: str


def import_causal(folder: Path, *, unknown_id: int | None = None) -> ImportedLanguageModel:
    """Import the language model in a `transformers` folder.

    Args:
        folder: The `transformers` folder.
        unknown_id: Id of the unknown token, if the tokenizer has one.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    checkpoint = read_checkpoint_config(folder, CAUSAL_FAMILIES)
    ends = _ends(checkpoint)
    tensors = StoredTensors(folder, checkpoint.family.prefix)
    config = parse_checked_config(checkpoint, lambda: _model_config(checkpoint), tensors.shapes)
    vocabulary = _vocabulary(checkpoint, ends[0], unknown_id)
    end_ids = vocabulary.to_headway_ids(ends)
    tied = _is_tied(checkpoint, tensors)
    update = {"tie": "target" if tied else "none", "output_bias": bool(vocabulary.duplicates)}
    config = config.model_copy(update=update)
    model = cast("DecoderOnly", build_without_initialization(config, len(vocabulary), len(vocabulary)))
    _load(checkpoint, model, tensors, vocabulary)
    return ImportedLanguageModel(model.eval(), vocabulary, end_ids, checkpoint.family.title)


def _model_config(checkpoint: Checkpoint[CausalFamily]) -> DecoderOnlyConfig:
    """Return the model's config, except ``tie`` and ``output_bias``."""
    family = checkpoint.family
    return DecoderOnlyConfig.parse(family.options(checkpoint), str(checkpoint.path))


def _ends(checkpoint: Checkpoint[CausalFamily]) -> list[int]:
    end = checkpoint.generation_setting("eos_token_id")
    ends = end if isinstance(end, list) else [end]
    if not ends or not all(isinstance(token_id, int) and token_id >= 0 for token_id in ends):
        raise checkpoint.bundle_error(f"eos_token_id = {end!r}: expected the id of one token, or several")
    return list(dict.fromkeys(ends))


def _vocabulary(checkpoint: Checkpoint[CausalFamily], end: int, unknown_id: int | None) -> VocabularyOrder:
    def optional_id(key: str) -> int | None:
        value = checkpoint.generation_setting(key)
        return value if isinstance(value, int) and value >= 0 else None

    try:
        return VocabularyOrder.for_language_model(
            checkpoint.positive_int("vocab_size"),
            pad=optional_id("pad_token_id"),
            start=optional_id("bos_token_id"),
            end=end,
            unknown=unknown_id,
        )
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None


def _is_tied(checkpoint: Checkpoint[CausalFamily], tensors: StoredTensors) -> bool:
    """Return whether the embedding and the output projection are the same matrix.

    If the file contains two different matrices, the setting in config.json is ignored, as in `transformers` since 5.0.
    """
    family = checkpoint.family
    projection = next((name for name in _projections(family) if name in tensors), None)
    if not checkpoint["tie_word_embeddings"] or family.embedding not in tensors:
        return False
    return projection is None or torch.equal(tensors[projection], tensors[family.embedding])


def _projections(family: CausalFamily) -> tuple[str, ...]:
    return family.projection, "lm_head.weight", f"{family.prefix}{family.projection}"


def _load(
    checkpoint: Checkpoint[CausalFamily], model: DecoderOnly, tensors: StoredTensors, vocabulary: VocabularyOrder
) -> None:
    """Copy the tensors to the model's weights."""
    family, weights = checkpoint.family, named_weights(model)  # parts of joint projections are views of the whole
    projection = next((name for name in _projections(family) if name in tensors), family.projection)
    tables = {family.embedding: "embedding.weight"}
    if model.config.tie == "none":
        tables[projection] = "projection.weight"
    ignored = re.compile("|".join([_BUFFERS, *map(re.escape, _projections(family))]))
    copy_tensors(tensors, weights, family.tensors(model.config), tables, vocabulary, ignored, family.title)
    if model.config.output_bias:
        with torch.no_grad():
            weights["projection.bias"].zero_()[list(vocabulary.duplicates)] = NEVER_GENERATED_BIAS
