"""Blocks of plain text: code shared by language modeling and masked language modeling.

Documents are joined by EOS and divided into blocks. :class:`BlockRecipe` rejects options that have no effect without a
target side, and :func:`prepare_blocks` creates the tokenizer and the block datasets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from headway.bundle import TaskConfig
from headway.data.blocks import BlockDataset
from headway.data.documents import (
    END_OF_DOCUMENT,
    DocumentEncoder,
    EmptyTextEncoder,
    TextCorpus,
    read_documents,
    read_texts,
)
from headway.data.encoding import SideSpec
from headway.data.store import TokenStore, fingerprint
from headway.data.store_builder import Shard
from headway.errors import ConfigError, DataError, TrainingError
from headway.models.decoder_only import DecoderOnlyConfig
from headway.text.base import TextTokenizer
from headway.text.corpus_encoder import CorpusEncoder
from headway.text.normalization import normalize_characters
from headway.training.prepare import BpeSampling, CorpusEncoding, DataPreparation
from headway.training.recipe import DataConfig, Recipe, TrainingConfig, ValidationConfig
from headway.training.report import Listener
from headway.training.task import Tokenizers


class TextDataConfig(DataConfig):
    """Configuration of the documents to train and validate on."""

    train: tuple[TextCorpus, ...] = Field(min_length=1, description="The training corpora.")
    dev: TextCorpus | None = Field(None, description="The development set.")
    dev_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Without dev: share of the tokens at the end of each training corpus that is held out as the "
        "development set.",
    )
    max_tokens: int = Field(16384, ge=1, description="Batch size in tokens: number of blocks x the model's max_length.")
    attend_within_documents: bool = Field(
        False,
        description="Whether tokens attend only to their own document, not to previous documents in the block. Each "
        "document then begins with BOS, as in generation.",
    )
    reset_positions: bool = Field(
        False,
        description="With attend_within_documents: whether positions count from 0 in each document instead of in each "
        "block. Rotary positions give the same result either way.",
    )


class LanguageModelTraining(TrainingConfig):
    """Configuration of the training loop for language models."""

    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Probability mass moved from the target to all tokens.")
    teacher: str | None = Field(
        None,
        description="Distillation: folder of a language model whose predicted distributions are the soft targets. The "
        "model uses the teacher's tokenizer.",
    )
    teacher_weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="With teacher: weight of the soft targets. The actual tokens have the remaining weight.",
    )
    teacher_temperature: float = Field(
        1.0,
        gt=0,
        description="With teacher: temperature by which the logits of both models are divided in the loss "
        "of the soft targets.",
    )


class LanguageModelValidation(ValidationConfig):
    """Configuration of validation for language models."""

    metric: Literal["loss"] = Field("loss", description="Score by which the best model is selected.")


class BlockRecipe(Recipe):
    """Base class of the recipes for models that are trained on blocks of text."""

    data: TextDataConfig
    training: LanguageModelTraining = Field(default_factory=LanguageModelTraining)
    validation: LanguageModelValidation = Field(default_factory=LanguageModelValidation)

    @model_validator(mode="after")
    def _check_blocks(self) -> BlockRecipe:
        if self.data.dev is not None and self.data.dev_fraction:
            raise ValueError("data.dev and data.dev_fraction exclude each other; remove one of them")
        given = {
            "data.filter": not self.data.filter.is_default,
            "data.bpe_dropout": self.data.bpe_dropout != 0,
            "tokenizer.joint = false": not self.tokenizer.joint,
            "task.source_language": self.task.source_language != TaskConfig().source_language,
            "task.target_language": self.task.target_language != TaskConfig().target_language,
            "training.class_weights": self.training.class_weights != "none",
            "validation.beam_size": self.validation.beam_size != 1,
        }
        self.refuse_options(given, "has no effect on a language model; remove the key")
        defaults = LanguageModelTraining()
        for key in ("teacher_weight", "teacher_temperature"):
            if self.training.teacher is None and getattr(self.training, key) != getattr(defaults, key):
                raise ValueError(f"training.{key} has no effect without training.teacher; remove the key")
        if self.data.reset_positions and not self.data.attend_within_documents:
            raise ValueError("data.reset_positions has no effect without data.attend_within_documents; remove the key")
        return self

    @property
    def normalization(self) -> Callable[[str], str] | None:
        """The function that normalizes chunks of documents without changing white space, or None."""
        return _normalize_piece if self.data.normalize else None


def _normalize_piece(piece: str) -> str:
    """Normalize the characters of a chunk of a document, which may end with :data:`END_OF_DOCUMENT`."""
    text = piece.removesuffix(END_OF_DOCUMENT)
    return normalize_characters(text) + piece[len(text) :]


def can_reset_positions(model: DecoderOnlyConfig) -> bool:
    """Return whether the positions of each document can count from 0.

    Rotary positions are not reset, so the scores must depend only on distances.
    """
    return model.positions != "rotary" or model.score in ("scaled_dot", "dot", "cosine")


def prepare_blocks(
    recipe: BlockRecipe,
    run: Path,
    listener: Listener,
    shard: Shard | None,
    task_key: tuple[object, ...],
    dataset_type: Callable[[TextTokenizer], Callable[..., BlockDataset]],
    tags: Sequence[str] = (),
) -> tuple[BlockDataset, BlockDataset | None, Tokenizers] | None:
    """Train the tokenizer and tokenize the corpora, or load existing results from the run folder.

    Returns the training and development sets and the tokenizers, or None if other shards are not finished yet.
    ``dataset_type`` returns the class of the datasets, or a function with the same arguments. For ``task_key`` and
    ``tags``, see :meth:`~headway.training.prepare.DataPreparation.make_tokenizers`.
    """
    folder = Path(recipe.data.folder)
    train = tuple(corpus.with_expanded_files(folder, listener.on_message) for corpus in recipe.data.train)
    dev = recipe.data.dev and recipe.data.dev.with_expanded_files(folder, listener.on_message)
    data = recipe.data.model_copy(update={"train": train, "dev": dev})
    preparation = DataPreparation(recipe.model_copy(update={"data": data}), run, listener, shard)
    # The number of tokens of a text is at most its number of bytes plus one end symbol per line.
    if data.dev_fraction and all(data.dev_fraction * sum(corpus.size(folder)) < 1 for corpus in train):
        raise _too_small(data.dev_fraction)
    tokenizers = preparation.make_tokenizers(cast("Any", read_texts), (0,), *task_key, tags=tags)
    stores = preparation.load_or_build_stores(partial(_encoding, tokenizers.source, folder), None)
    if stores is None:
        return None
    kept = 1 - data.dev_fraction
    blocks = partial(dataset_type(tokenizers.source), block_length=cast("DecoderOnlyConfig", recipe.model).max_length)
    training = blocks(stores[0], [corpus.weight for corpus in train], data.temperature, part=(0.0, kept))
    if not len(training):
        raise TrainingError("the training corpora contain no text")
    development = blocks([stores[1]]) if stores[1] else blocks(stores[0], part=(kept, 1.0))
    if data.dev_fraction and not development.has_targets:
        raise _too_small(data.dev_fraction)
    for key, corpora, part in (("train", train, training), ("dev", (dev,), development)):
        if len(part) and not part.has_targets:
            raise DataError(
                f"data.{key}: {' and '.join(corpus.shown_files for corpus in corpora if corpus)} has no token to "
                "predict, because the vocabulary contains none of its tokens; expected text in the same script as the "
                "tokenizer's training text"
            )
    if data.dev_fraction:
        borders = [_border(store, tokenizers.source, kept) for store in stores[0]]

        def examples(part: Callable[..., Iterator[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
            for corpus, border in zip(train, borders, strict=True):
                yield from part(read_documents(corpus, folder, bad_lines=preparation.bad_lines()), *border)

        key = fingerprint([store.fingerprint for store in stores[0]], data.dev_fraction)
        preparation.report_overlap("data.dev_fraction", key, examples(_after), examples(_before))
    return training, development if len(development) else None, tokenizers


def _too_small(fraction: float) -> ConfigError:
    return ConfigError(f"data.dev_fraction = {fraction}: this part of the corpora contains no text; raise the value")


def _border(store: TokenStore, tokenizer: TextTokenizer, kept: float) -> tuple[int, int]:
    """Return the start of the held-out part of a corpus: the index of a chunk, and of a character in the chunk.

    The character index is only approximate if the tokenizer changes the text.
    """
    token = round(kept * store.num_tokens("source"))
    piece, start = store.row_of_token("source", token)
    return piece, len(tokenizer.decode(store.read_tokens("source", start, token).tolist()))


def _before(pieces: Iterator[tuple[str, str]], number: int, character: int) -> Iterator[tuple[str, str]]:
    """Yield the chunks before a border. The last chunk ends at its last complete line before the border."""
    yield from islice(pieces, number)
    for piece, _ in islice(pieces, 1):
        yield piece[: piece.rfind("\n", 0, character) + 1], ""


def _after(pieces: Iterator[tuple[str, str]], number: int, character: int) -> Iterator[tuple[str, str]]:
    """Yield the chunks after a border, the first one from its first whole line."""
    for piece, _ in islice(pieces, number, number + 1):
        start = character and (piece.find("\n", character - 1) + 1 or len(piece))
        yield piece[start:], ""
    yield from pieces


def _encoding(
    tokenizer: TextTokenizer, folder: Path, corpus: TextCorpus, _sampling: BpeSampling | None
) -> CorpusEncoding:
    def sides() -> tuple[SideSpec, SideSpec]:
        return SideSpec(DocumentEncoder(CorpusEncoder(tokenizer))), SideSpec(EmptyTextEncoder())

    return CorpusEncoding(
        partial(read_documents, corpus, folder),
        sides,
        (tokenizer.fingerprint, "no text"),
        {"documents": corpus.documents},
        ("the tokenizer has changed", "the target side has changed"),
    )
