"""Language modeling: predict each token of a text from the tokens before it.

Documents are joined by EOS and divided into blocks of the model's context length. Each block begins with BOS, from
which its first token is predicted, so that every token of the training text is predicted once in an epoch. The loss is
the cross-entropy of the next token, optionally label-smoothed and with R-Drop.

By default, a token attends to all earlier tokens of its block, also to those of the documents before its own. With
``data.attend_within_documents`` it attends only to its own document, and the first token of each document is predicted
from BOS, which takes the place of the EOS before it. A document inside a block then has the same loss as alone, if its
positions also count from 0 (``data.reset_positions``).

On the development set, blocks do not overlap, and nothing is carried from one to the next: the first tokens of a block
have little context, so the loss is higher than with a sliding window. Its bits per byte,

    bits per byte = (sum of -ln p over all tokens) / (ln 2 x bytes of text in UTF-8),

can be compared between models with different tokenizers, unlike the loss and the perplexity of a token. The
predictions of EOS after each document count; EOS itself has no bytes. An unknown token counts like any other, but no
bits are counted for the character or word that it stands for. Their number is reported.

A recurrent model with ``carry_state`` reads blocks as contiguous streams (:class:`headway.data.blocks.StreamDataset`).
A block begins with the token before it instead of BOS, and with the state after it, through which no gradient flows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from headway.bundle import LanguageModelBundle, TaskConfig, read_config
from headway.data.blocks import BlockDataset, StreamDataset
from headway.data.documents import DocumentEncoder, NoText, TextCorpus, read_documents, read_texts
from headway.data.encoding import SideSpec
from headway.data.store_builder import Shard
from headway.engine.accelerate import accelerate
from headway.engine.loss import projected_distillation_loss
from headway.errors import ConfigError, TrainingError
from headway.kinds import Capability
from headway.models.base import ContinuationModel
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.models.registry import ModelConfig, build_model
from headway.nn.masks import DocumentMask
from headway.tasks.translation import TranslationObjective
from headway.text.base import BOS, EOS, UNK, TextTokenizer
from headway.text.corpus_encoder import CorpusEncoder
from headway.training.prepare import BpeSampling, CorpusEncoding, Preparation
from headway.training.recipe import DataConfig, Recipe, TrainingConfig, ValidationConfig
from headway.training.report import Listener
from headway.training.stream import TokenBatch
from headway.training.task import RunData, Task, Tokenizers

if TYPE_CHECKING:
    from headway.predict import LanguageModel


class TextDataConfig(DataConfig):
    """The documents to train and validate on."""

    train: tuple[TextCorpus, ...] = Field(min_length=1, description="The training corpora.")
    dev: TextCorpus | None = Field(None, description="The development set.")
    dev_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Without dev: the share of the tokens at the end of each training corpus that is the development "
        "set and is not trained on.",
    )
    max_tokens: int = Field(16384, ge=1, description="Batch size in tokens: blocks x the model's max_length.")
    attend_within_documents: bool = Field(
        False,
        description="Whether tokens attend only to their own document, instead of to all earlier documents of the "
        "block. Each document then begins with BOS, as in generation.",
    )
    reset_positions: bool = Field(
        False,
        description="With attend_within_documents: whether the positions of each document count from 0, instead of "
        "from the beginning of the block. Rotary positions give the same result either way.",
    )


class LanguageModelTraining(TrainingConfig):
    """How long and how to train a language model."""

    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Probability that is spread over all tokens.")
    teacher: str | None = Field(
        None,
        description="Distillation: the folder of a language model whose predicted distribution is a soft target for "
        "each token. The model gets the teacher's tokenizer.",
    )
    teacher_weight: float = Field(
        0.5, gt=0, le=1, description="With teacher: weight of the soft targets; the rest is that of the text's tokens."
    )
    teacher_temperature: float = Field(
        1.0, gt=0, description="With teacher: both models' logits are divided by it in the loss of the soft targets."
    )


class LanguageModelValidation(ValidationConfig):
    """How language modeling uses the development set."""

    metric: Literal["loss"] = Field("loss", description="The score that decides which model is the best.")


class LanguageModelRecipe(Recipe):
    """The recipe of a language model."""

    capability: ClassVar[Capability] = "continues"
    default_model: ClassVar[str] = "decoder_only"

    data: TextDataConfig
    model: ModelConfig = Field(default_factory=DecoderOnlyConfig)
    training: LanguageModelTraining = Field(default_factory=LanguageModelTraining)
    validation: LanguageModelValidation = Field(default_factory=LanguageModelValidation)

    @model_validator(mode="after")
    def _check_language_model(self) -> LanguageModelRecipe:
        if self.data.dev is not None and self.data.dev_fraction:
            raise ValueError("data.dev and data.dev_fraction exclude each other; leave one out")
        refused = {
            "data.filter": not self.data.filter.is_default,
            "data.bpe_dropout": self.data.bpe_dropout != 0,
            "tokenizer.joint = false": not self.tokenizer.joint,
            "task.source_language": self.task.source_language != TaskConfig().source_language,
            "task.target_language": self.task.target_language != TaskConfig().target_language,
            "training.class_weights": self.training.class_weights != "none",
            "validation.beam_size": self.validation.beam_size != 1,
        }
        if wrong := [key for key, given in refused.items() if given]:
            raise ValueError(f"{wrong[0]}: has no effect on a language model; leave the key out")
        training = self.training
        defaults = LanguageModelTraining()
        for key in ("teacher_weight", "teacher_temperature"):
            if training.teacher is None and getattr(training, key) != getattr(defaults, key):
                raise ValueError(f"training.{key}: has no effect without training.teacher; leave the key out")
        if training.teacher is not None and training.r_drop:
            raise ValueError("training.r_drop and training.teacher exclude each other; leave one out")
        if training.teacher is not None and self.capability != "continues":
            raise ValueError("training.teacher: has no effect on this task; leave the key out")
        self._check_documents()
        if self.carries_state and any(corpus.weight != 1 for corpus in self.data.train):
            raise ValueError(
                "data.train: weight != 1 draws blocks, but model.carry_state = true reads the text in its own order; "
                "leave weight out, or set carry_state to false"
            )
        if self.carries_state and self.data.temperature is not None:
            raise ValueError(
                "data.temperature draws blocks, but model.carry_state = true reads the text in its own order; leave "
                "temperature out, or set carry_state to false"
            )
        return self

    def _check_documents(self) -> None:
        """Refuse attention within documents for models that cannot compute it."""
        model = self.model
        if not self.data.attend_within_documents:
            if self.data.reset_positions:
                raise ValueError(
                    "data.reset_positions: has no effect without data.attend_within_documents; leave the key out"
                )
            return
        if not isinstance(model, DecoderOnlyConfig):
            reason = (
                "a recurrent model has no attention, and its state runs through all documents of a block"
                if self.capability == "continues"
                else "a masked language model attends to whole blocks"
            )
            raise ValueError(f"data.attend_within_documents = true needs a decoder_only model: {reason}; leave it out")
        if self.data.reset_positions and model.positions == "none":
            raise ValueError("data.reset_positions: has no effect with model.positions = 'none'; leave the key out")
        if self.data.reset_positions and not _can_reset_positions(model):
            raise ValueError(
                f"data.reset_positions = true does not fit model.score = {model.score!r} with rotary positions, which "
                "are not reset, because only scores by dot product and cosine do not depend on where a document "
                "begins; leave the key out, or choose model.score = 'scaled_dot'"
            )

    @property
    def tokenizer_source(self) -> str | None:
        """The model folder whose tokenizer is used: the folder that training starts from, or the teacher's."""
        return super().tokenizer_source or self.training.teacher

    @property
    def carries_state(self) -> bool:
        """Whether batches are contiguous, and the model's state is carried from one to the next."""
        return isinstance(self.model, RecurrentLMConfig) and self.model.carry_state


def _can_reset_positions(model: DecoderOnlyConfig) -> bool:
    """Return whether the positions of each document can count from 0.

    Rotary positions are not reset, so the scores must depend only on distances.
    """
    return model.positions != "rotary" or model.score in ("scaled_dot", "dot", "cosine")


class SoftTargets:
    """The predictions of a larger language model as targets (Hinton et al. 2015, "Distilling the Knowledge").

    Args:
        folder: The teacher's model folder. The teacher is loaded when it is first used. It reads each block as the
            student does, but always from BOS.
        weight: Weight of the divergence from the teacher.
        temperature: Divisor of both models' logits.
    """

    def __init__(self, folder: Path, weight: float, temperature: float) -> None:
        self.weight, self._temperature = weight, temperature
        self._folder = folder

    def loss(
        self,
        hidden: Float[Tensor, "N D"],
        projection: nn.Module,
        batch: TokenBatch,
        read: Callable[[ContinuationModel, Tensor], Tensor],
    ) -> Float[Tensor, ""]:
        """Return the divergence of the student's predictions, summed over the batch's tokens.

        ``read`` returns the hidden states of a model, given the tokens that it reads.
        """
        teacher = self._teacher.to(hidden.device)
        with torch.no_grad():
            states = read(teacher, batch.decoder_input).flatten(0, 1).index_select(0, batch.target_positions)
        return projected_distillation_loss(hidden, projection, states, teacher.projection, self._temperature)

    @cached_property
    def _teacher(self) -> ContinuationModel:
        return accelerate(LanguageModelBundle.load(self._folder).model.eval().requires_grad_(False))


class LanguageModelObjective(TranslationObjective):
    """The cross-entropy of each token of a batch of blocks, given the tokens before it in the block.

    With ``soft_targets``, the training loss is a weighted sum of it and of the divergence from a teacher's predictions.
    """

    soft_targets: SoftTargets | None = None

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the loss, summed over the batch's tokens."""
        if self.soft_targets is None:
            return super().forward(batch)
        states = self.states(*self.inputs(batch))
        hard = self._loss(states, batch, self.label_smoothing)
        soft = self.soft_targets.loss(self.outputs(states, batch), self.model.projection, batch, self.read)
        return torch.lerp(hard, soft, self.soft_targets.weight)

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the tokens that the model reads: BOS and all but the last token of each block."""
        return (batch.decoder_input,)

    def read(self, model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return a model's hidden states for blocks that begin with BOS."""
        states: Tensor = model.hidden(tokens)
        return states


class DocumentObjective(LanguageModelObjective):
    """The cross-entropy of each token of a batch of blocks, given the tokens before it in its document.

    With ``reset_positions``, the positions of each document count from 0.
    """

    model: DecoderOnly

    def __init__(
        self, model: DecoderOnly, label_smoothing: float, r_drop: float = 0.0, *, reset_positions: bool
    ) -> None:
        super().__init__(model, label_smoothing, r_drop)
        self.reset_positions = reset_positions

    def states(self, *inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Return the model's hidden states of all positions."""
        return self.read(self.model, *inputs)

    def read(self, model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return a model's hidden states. BOS takes the place of each EOS, after which a document begins."""
        begins = (tokens == BOS) | (tokens == EOS)
        documents = DocumentMask.from_starts(begins)
        if tokens.is_cuda:  # PyTorch's attention on a GPU needs a tensor, one for all layers
            documents = documents.with_tensor()
        tokens = tokens.masked_fill(begins, BOS)
        states: Tensor = cast("DecoderOnly", model).hidden(tokens, documents, reset_positions=self.reset_positions)
        return states


class CarriedStateObjective(LanguageModelObjective):
    """The cross-entropy of each token of contiguous streams, given all tokens before it in its stream.

    The state after a batch is carried to the next batch, detached. It has a row for each row that the model reads
    (twice those of the batch with R-Drop). A row whose block begins a stream starts from the initial state.
    """

    model: RecurrentLM
    carries_state = True

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the tokens that the model reads: the token before each block, and all but its last token."""
        return (torch.cat([batch.source, batch.decoder_input[:, 1:]], 1),)

    def states(self, *inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Return the hidden states of all positions, and keep the state after them."""
        (tokens,) = inputs
        begins, rows = tokens[:, :1] == BOS, len(tokens)
        state = self.model.initial_state(rows)
        if self.carried_state and len(self.carried_state["0.0"]) >= rows:  # the last batches may have fewer rows
            state = tuple(
                tuple(
                    torch.where(begins, part, self.carried_state[f"{layer}.{number}"][:rows])
                    for number, part in enumerate(parts)
                )
                for layer, parts in enumerate(state)
            )
        hidden, after = self.model.continue_from(state, tokens)
        self.carried_state = {
            f"{layer}.{number}": part.detach() for layer, parts in enumerate(after) for number, part in enumerate(parts)
        }
        return hidden


class LanguageModelTask(Task[LanguageModelRecipe, RunData, ContinuationModel]):
    """The language modeling task."""

    kind: ClassVar[str] = "language_model"
    recipe_type = LanguageModelRecipe
    bundle_type = LanguageModelBundle
    command: ClassVar[str] = "generate"

    def prepare(
        self, recipe: LanguageModelRecipe, run: Path, listener: Listener, shard: Shard | None = None
    ) -> RunData | None:
        """Train the tokenizer and tokenize the corpora, or load both from the run folder."""
        dataset_type = StreamDataset if recipe.carries_state else BlockDataset
        blocks = prepare_blocks(recipe, run, listener, shard, (self.kind,), lambda _: dataset_type)
        if blocks is None:
            return None
        training, development, tokenizers = blocks
        if development is None:
            return RunData(training, development, tokenizers)
        ids = development.text_tokens()
        num_bytes, num_unknown = len(tokenizers.source.decode(ids.tolist()).encode()), int((ids == UNK).sum())
        if num_unknown:
            listener.say(
                f"the development text has {num_unknown:,} unknown tokens among {len(ids):,}; no bits are counted for "
                "what they stand for, so its loss, perplexity and bits per byte are too low"
            )
        return RunData(training, development, tokenizers, dev_bytes=num_bytes, dev_unknown=num_unknown)

    def build_model(self, recipe: LanguageModelRecipe, prepared: RunData) -> ContinuationModel:
        """Build the model."""
        size = prepared.tokenizers.source.vocab_size
        return cast("ContinuationModel", build_model(recipe.model, size, size))

    def build_objective(
        self, model: ContinuationModel, recipe: LanguageModelRecipe, prepared: RunData
    ) -> LanguageModelObjective:
        """Return the cross-entropy with the recipe's settings."""
        training, data = recipe.training, recipe.data
        settings = training.label_smoothing, training.r_drop
        objective: LanguageModelObjective
        if recipe.carries_state:
            objective = CarriedStateObjective(cast("RecurrentLM", model), *settings)
        elif data.attend_within_documents:
            reset = data.reset_positions
            objective = DocumentObjective(cast("DecoderOnly", model), *settings, reset_positions=reset)
        else:
            objective = LanguageModelObjective(model, *settings)
        if training.teacher is not None:
            _check_teacher(Path(training.teacher), prepared.tokenizers.source, model.config.max_length, data)
            teacher = Path(training.teacher), training.teacher_weight, training.teacher_temperature
            objective.soft_targets = SoftTargets(*teacher)
        return objective

    def build_bundle(
        self, model: ContinuationModel, recipe: LanguageModelRecipe, prepared: RunData
    ) -> LanguageModelBundle:
        """Return the content of the model folder."""
        return LanguageModelBundle(recipe.task, model, prepared.tokenizers.source)

    def describe_for_model_card(self, recipe: LanguageModelRecipe, prepared: RunData) -> tuple[str, str]:
        """Return the model card's title and the size of the training data."""
        return "Language model", f"{prepared.train.num_tokens('target'):,} tokens"

    def load_predictor(self, folder: Path, **settings: Any) -> LanguageModel:
        """Load a :class:`~headway.predict.LanguageModel`."""
        from headway.predict import load_language_model

        return load_language_model(folder, **settings)


def _check_teacher(folder: Path, tokenizer: TextTokenizer, block_length: int, data: TextDataConfig) -> None:
    """Refuse a teacher that is no language model, has another tokenizer, or has too few positions."""
    config = read_config(folder)
    if config.capability != "continues":
        raise ConfigError(f"training.teacher = {str(folder)!r}: not a language model")
    if config.load_tokenizers()[0].fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: its tokenizer differs from that of this run; start again with --fresh"
        )
    model = config.model
    if data.attend_within_documents and not isinstance(model, DecoderOnlyConfig):
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: a {model.kind} model cannot keep the documents of a block apart; set "
            "data.attend_within_documents to false"
        )
    if data.reset_positions and isinstance(model, DecoderOnlyConfig) and not _can_reset_positions(model):
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: the positions of a model with score = {model.score!r} and rotary "
            "positions cannot be reset; set data.reset_positions to false"
        )
    if isinstance(model, DecoderOnlyConfig) and model.positions == "learned" and model.max_length < block_length:
        raise ConfigError(
            f"model.max_length = {block_length}: the teacher has only {model.max_length} positions; set a smaller value"
        )


def prepare_blocks(
    recipe: LanguageModelRecipe,
    run: Path,
    listener: Listener,
    shard: Shard | None,
    task_key: tuple[object, ...],
    dataset_type: Callable[[TextTokenizer], Callable[..., BlockDataset]],
    tags: Sequence[str] = (),
) -> tuple[BlockDataset, BlockDataset | None, Tokenizers] | None:
    """Train the tokenizer and tokenize the corpora, or load both from the run folder.

    Returns the training and development sets and the tokenizers, or None if parts of other shards are missing.
    ``dataset_type`` returns the class of the data sets, or a function with the same arguments. For ``task_key`` and
    ``tags`` see :meth:`~headway.training.prepare.Preparation.make_tokenizers`.
    """
    folder = Path(recipe.data.folder)
    train = tuple(corpus.expanded(folder) for corpus in recipe.data.train)
    dev = recipe.data.dev and recipe.data.dev.expanded(folder)
    data = recipe.data.model_copy(update={"train": train, "dev": dev})
    preparation = Preparation(recipe.model_copy(update={"data": data}), run, listener, shard)
    tokenizers = preparation.make_tokenizers(cast("Any", read_texts), (0,), *task_key, tags=tags)
    stores = preparation.stores(partial(_encoding, tokenizers.source, folder), None)
    if stores is None:
        return None
    kept = 1 - data.dev_fraction
    blocks = partial(dataset_type(tokenizers.source), block_length=cast("DecoderOnlyConfig", recipe.model).max_length)
    training = blocks(stores[0], [corpus.weight for corpus in train], data.temperature, part=(0.0, kept))
    if not len(training):
        raise TrainingError("the training corpora contain no text")
    development = blocks([stores[1]]) if stores[1] else blocks(stores[0], part=(kept, 1.0))
    if data.dev_fraction and not len(development):
        raise ConfigError(f"data.dev_fraction = {data.dev_fraction}: no token is left for it; raise it")
    return training, development if len(development) else None, tokenizers


def _encoding(
    tokenizer: TextTokenizer, folder: Path, corpus: TextCorpus, _sampling: BpeSampling | None
) -> CorpusEncoding:
    def sides() -> tuple[SideSpec, SideSpec]:
        return SideSpec(DocumentEncoder(CorpusEncoder(tokenizer))), SideSpec(NoText())

    return CorpusEncoding(
        partial(read_documents, corpus, folder),
        sides,
        (tokenizer.fingerprint, "no text"),
        {"documents": corpus.documents},
        ("the tokenizer has changed", "the target side has changed"),
    )
