"""Import a decoder-only model of `transformers`: its weights and the order of its vocabulary.

Every tensor and every key of config.json must be known. Tensors are read one by one and copied to the model, so the
peak memory is that of the model and one tensor, whatever the number of files. Weights of any floating-point type become
float32. Settings of ``generate()`` and of initialization are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from headway.bundle import build_without_initialization, named_weights
from headway.errors import BundleError
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES, CausalFamily
from headway.interop.huggingface.checkpoint import Checkpoint, StoredTensors, read_checkpoint_config
from headway.interop.huggingface.importing import NEVER
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.text.base import NUM_SPECIAL

_ROWS_AT_ONCE = 4096  # of an embedding, so that no second copy of it is in memory
# Buffers in older files: causal masks, and the frequencies of rotary positions.
_BUFFERS = re.compile(r".*\.(attn|attention)\.(bias|masked_bias)|.*rotary_emb\.inv_freq")
# Keys that do not affect the logits: how a model was made, trained and saved, and settings of generate().
_IGNORED = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "bos_token",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "classifier_dropout_prob",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "eos_token",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "model_type",
        "n_ctx",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pretraining_tp",
        "problem_type",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)


@dataclass(frozen=True)
class ImportedLanguageModel:
    """An imported language model in evaluation mode, and the order of its vocabulary."""

    model: DecoderOnly
    vocabulary: VocabularyOrder
    family: str


def import_causal(folder: Path, *, unknown_id: int | None = None) -> ImportedLanguageModel:
    """Import the model of a `transformers` folder.

    Args:
        folder: The folder.
        unknown_id: Id of the unknown token, if the tokenizer has one.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    checkpoint = read_checkpoint_config(folder, CAUSAL_FAMILIES)
    config, vocabulary = _model_config(checkpoint), _vocabulary(checkpoint, unknown_id)
    tensors = StoredTensors(folder, checkpoint.family.prefix)
    tied = _is_tied(checkpoint, tensors)
    update = {"tie": "target" if tied else "none", "output_bias": bool(vocabulary.duplicates)}
    config = config.model_copy(update=update)
    model = cast("DecoderOnly", build_without_initialization(config, len(vocabulary), len(vocabulary)))
    _load(checkpoint, model, tensors, vocabulary)
    return ImportedLanguageModel(model.eval(), vocabulary, checkpoint.family.title)


def _model_config(checkpoint: Checkpoint[CausalFamily]) -> DecoderOnlyConfig:
    """Return the model's config, except ``tie`` and ``output_bias``."""
    family = checkpoint.family
    known = _IGNORED.union(family.defaults, family.fixed)
    for key, value in checkpoint.config.items():
        if key not in known and value not in (None, False, "", [], {}):
            raise checkpoint.bundle_error(f"{key} = {value!r} is not supported for {family.title}")
    return DecoderOnlyConfig.parse(family.options(checkpoint), str(checkpoint.path))


def _vocabulary(checkpoint: Checkpoint[CausalFamily], unknown_id: int | None) -> VocabularyOrder:
    def optional_id(key: str) -> int | None:
        value = checkpoint.generation_setting(key)
        return value if isinstance(value, int) and value >= 0 else None

    end = checkpoint.generation_setting("eos_token_id")
    match end:
        case int(token) | [int(token)]:
            pass
        case _:
            raise checkpoint.bundle_error(f"eos_token_id = {end!r} is not supported; expected the id of one token")
    try:
        return VocabularyOrder.of_language_model(
            checkpoint.positive_int("vocab_size"),
            pad=optional_id("pad_token_id"),
            start=optional_id("bos_token_id"),
            end=token,
            unknown=unknown_id,
        )
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None


def _is_tied(checkpoint: Checkpoint[CausalFamily], tensors: StoredTensors) -> bool:
    """Return whether embedding and output projection are one matrix.

    If config.json says so but the file contains two different ones, they are two (as in `transformers` since 5.0).
    """
    family = checkpoint.family
    found = next((name for name in _projections(family) if name in tensors), None)
    if not checkpoint["tie_word_embeddings"] or family.embedding not in tensors:
        return False
    return found is None or torch.equal(tensors[found], tensors[family.embedding])


def _projections(family: CausalFamily) -> tuple[str, ...]:
    return family.projection, "lm_head.weight", f"{family.prefix}{family.projection}"


def _load(
    checkpoint: Checkpoint[CausalFamily], model: DecoderOnly, tensors: StoredTensors, vocabulary: VocabularyOrder
) -> None:
    """Copy the tensors to the model's weights."""
    family, weights = checkpoint.family, named_weights(model)  # the parts of joint projections are views of them
    projection = next((name for name in _projections(family) if name in tensors), family.projection)
    maps = [each for each in family.tensors(model.config) if all(name in weights for name in each.ours)]
    tables = {family.embedding: "embedding.weight"} | (
        {projection: "projection.weight"} if model.config.tie == "none" else {}
    )
    needed = {each.theirs for each in maps} | tables.keys()
    known = needed.union(_projections(family))
    if strange := sorted(name for name in tensors if name not in known and not _BUFFERS.fullmatch(name)):
        raise BundleError(
            f"{tensors.path}: unknown tensor {strange[0]!r} ({len(strange)} in all), which {family.title} with this "
            "config.json does not have"
        )
    if missing := sorted(needed - tensors.keys()):
        raise BundleError(f"{tensors.path}: tensor {missing[0]!r} is missing ({len(missing)} in all)")
    with torch.no_grad():
        for theirs, ours in tables.items():
            rows = checkpoint.positive_int("vocab_size")
            _check_shape(tensors, theirs, (rows, model.config.d_model))
            _copy_rows(tensors, theirs, vocabulary.order, weights[ours])
        for each in maps:
            targets = [weights[name] for name in each.ours]
            shapes = [torch.empty(target.shape, device="meta") for target in targets]
            _check_shape(tensors, each.theirs, tuple(each.to_theirs(shapes).shape))
            for target, source in zip(targets, each.to_ours(tensors[each.theirs]), strict=True):
                target.copy_(source)
        if model.config.output_bias:
            weights["projection.bias"].zero_()[list(vocabulary.duplicates)] = NEVER


def _copy_rows(tensors: StoredTensors, name: str, order: Sequence[int], target: Tensor) -> None:
    """Copy rows of a table to the rows of ``target``. Except for the special tokens, their order is the same."""
    starts = [*range(NUM_SPECIAL), *range(NUM_SPECIAL, len(order), _ROWS_AT_ONCE), len(order)]
    for start, end in pairwise(starts):
        first = order[start]
        read = tensors.rows(name, slice(first, order[end - 1] + 1))
        target[start:end].copy_(read[[old - first for old in order[start:end]]])


def _check_shape(tensors: StoredTensors, name: str, expected: tuple[int, ...]) -> None:
    if tensors.shape(name) != expected:
        raise BundleError(
            f"{tensors.path}: tensor {name!r} has shape {list(tensors.shape(name))}; config.json requires "
            f"{list(expected)}"
        )
