"""Language modeling: predict each token of a text from the tokens before it.

Documents are joined by EOS and divided into blocks of the model's context length. Each block begins with BOS, from
which its first token is predicted, so that every token of the training text is predicted once per epoch. The loss is
the cross-entropy of the next token, optionally with label smoothing and R-Drop.

By default, a token attends to all earlier tokens in its block, including the tokens of previous documents. With
``data.attend_within_documents``, it attends only to its own document, and the first token of each document is predicted
from BOS, which replaces the preceding EOS. If its positions also count from 0 (``data.reset_positions``), a document
inside a block has the same loss as in a block by itself.

On the development set, blocks do not overlap, and no state is carried between them. The first tokens of a block have
little context, so the loss is higher than with a sliding window. The bits per byte,

    bits per byte = (sum of -ln p over all tokens) / (ln 2 x bytes of text in UTF-8),

can be compared between models with different tokenizers, unlike the loss and the perplexity per token. They include the
prediction of EOS after each document, although EOS has no bytes. An unknown token is treated like any other token, so
the bits needed to spell the unknown character or word are missing. The number of unknown tokens is reported.

A recurrent model with ``carry_state`` processes blocks as contiguous streams
(:class:`headway.data.blocks.StreamDataset`). A block then begins with the preceding token instead of BOS, and with the
detached state after this token.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from headway.bundle import LanguageModelBundle
from headway.data.blocks import BlockDataset, StreamDataset
from headway.data.store_builder import Shard
from headway.interop.hub import model_folder
from headway.kinds import Capability
from headway.models.base import ContinuationModel
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.models.registry import ModelConfig, build_model
from headway.nn.masks import DocumentMask
from headway.tasks.smoothing_prior import smoothing_prior
from headway.tasks.soft_targets import SoftTargets, check_teacher
from headway.tasks.text_blocks import BlockRecipe, can_reset_positions, prepare_blocks
from headway.tasks.token_objective import TokenObjective
from headway.text.base import BOS, EOS, UNK
from headway.training.report import Listener
from headway.training.stream import TokenBatch
from headway.training.task import RunData, Task

if TYPE_CHECKING:
    from headway.predict import LanguageModel


class LanguageModelRecipe(BlockRecipe):
    """The recipe of a language model."""

    capability: ClassVar[Capability] = "continues"
    default_model: ClassVar[str] = "decoder_only"

    model: ModelConfig = Field(default_factory=DecoderOnlyConfig)

    @model_validator(mode="after")
    def _check_language_model(self) -> LanguageModelRecipe:
        training = self.training
        if training.teacher is not None and training.r_drop:
            raise ValueError("training.r_drop and training.teacher exclude each other; remove one of them")
        self._check_documents()
        if self.carries_state and any(corpus.weight != 1 for corpus in self.data.train):
            raise ValueError(
                "data.train: weight != 1 samples blocks, but model.carry_state = true needs the text in its original "
                "order; remove weight, or set carry_state to false"
            )
        if self.carries_state and self.data.temperature is not None:
            raise ValueError(
                "data.temperature samples blocks, but model.carry_state = true needs the text in its original order; "
                "remove temperature, or set carry_state to false"
            )
        return self

    def _check_documents(self) -> None:
        """Reject attention within documents for models that do not support it."""
        model = self.model
        if not self.data.attend_within_documents:
            return
        if not isinstance(model, DecoderOnlyConfig):
            raise ValueError(
                "data.attend_within_documents = true needs a decoder_only model: a recurrent model has no attention, "
                "and carries its state through all documents of a block; remove the key"
            )
        if self.data.reset_positions and model.positions == "none":
            raise ValueError("data.reset_positions has no effect with model.positions = 'none'; remove the key")
        if self.data.reset_positions and not can_reset_positions(model):
            raise ValueError(
                f"data.reset_positions = true does not work with model.score = {model.score!r} and rotary positions: "
                "they are not reset, and only dot-product and cosine scores are independent of where a document "
                "begins; remove the key, or set model.score = 'scaled_dot'"
            )

    @property
    def tokenizer_source(self) -> str | None:
        """The model folder from which the tokenizer is copied: the initial model or the teacher."""
        return super().tokenizer_source or self.training.teacher

    @property
    def carries_state(self) -> bool:
        """Whether consecutive batches are contiguous, with the model's state carried from batch to batch."""
        return isinstance(self.model, RecurrentLMConfig) and self.model.carry_state


class LanguageModelObjective(TokenObjective):
    """The cross-entropy of each token in a batch of blocks, given the previous tokens in its block.

    With ``soft_targets``, the training loss is a weighted sum of the cross-entropy and the divergence from a teacher's
    predictions.
    """

    soft_targets: SoftTargets | None = None

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over the batch's tokens."""
        if self.soft_targets is None:
            return super().forward(batch)
        states = self.states(*self.inputs(batch))
        hard = self.loss_of(states, batch, self.label_smoothing)
        soft = self.soft_targets.loss(self.outputs(states, batch), self.model.projection, batch, self.run_model)
        return torch.lerp(hard, soft, self.soft_targets.weight)

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the model's input tokens: BOS and all but the last token of each block."""
        return (batch.decoder_input,)

    def run_model(self, model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return a model's hidden states for blocks that begin with BOS."""
        states: Tensor = model.hidden(tokens)
        return states


class DocumentObjective(LanguageModelObjective):
    """The cross-entropy of each token in a batch of blocks, given the previous tokens in its document.

    With ``reset_positions``, the positions of each document count from 0.
    """

    model: DecoderOnly

    def __init__(
        self,
        model: DecoderOnly,
        label_smoothing: float,
        r_drop: float = 0.0,
        prior: Float[Tensor, " V"] | None = None,
        *,
        reset_positions: bool,
    ) -> None:
        super().__init__(model, label_smoothing, r_drop, prior)
        self.reset_positions = reset_positions

    def states(self, *inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Return the model's hidden states at all positions."""
        return self.run_model(self.model, *inputs)

    def run_model(self, model: Any, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return a model's hidden states. Each EOS is replaced by BOS, because a document begins after it."""
        begins = (tokens == BOS) | (tokens == EOS)
        documents = DocumentMask.from_starts(begins)
        if tokens.is_cuda:  # PyTorch's attention on a GPU needs a mask tensor, which all layers share
            documents = documents.with_tensor()
        tokens = tokens.masked_fill(begins, BOS)
        states: Tensor = cast("DecoderOnly", model).hidden(tokens, documents, reset_positions=self.reset_positions)
        return states


class CarriedStateObjective(LanguageModelObjective):
    """The cross-entropy of each token in contiguous streams, given all previous tokens in its stream.

    The state after a batch is detached and carried to the next batch. It has one row per model input (with R-Drop,
    twice the rows of the batch). A row whose block is the first of a stream starts from the initial state.
    """

    model: RecurrentLM
    carries_state = True

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the model's input tokens: the token before each block, and all but the last token of the block."""
        return (torch.cat([batch.source, batch.decoder_input[:, 1:]], 1),)

    def states(self, *inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Return the hidden states at all positions, and store the state after them."""
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
        """Train the tokenizer and tokenize the corpora, or load existing results from the run folder."""
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
            listener.on_message(
                f"{num_unknown:,} of {len(ids):,} tokens of the development text are unknown; the loss does not "
                "include the text that they replace, so loss, perplexity and bits per byte are too low"
            )
        return RunData(training, development, tokenizers, num_dev_bytes=num_bytes, num_dev_unknown=num_unknown)

    def build_model(self, recipe: LanguageModelRecipe, prepared: RunData) -> ContinuationModel:
        """Build the model."""
        size = prepared.tokenizers.source.vocab_size
        return cast("ContinuationModel", build_model(recipe.model, size, size))

    def build_objective(
        self, model: ContinuationModel, recipe: LanguageModelRecipe, prepared: RunData
    ) -> LanguageModelObjective:
        """Return the cross-entropy objective with the recipe's settings."""
        training, data = recipe.training, recipe.data
        prior = smoothing_prior(recipe, prepared, prepared.tokenizers.source.vocab_size)
        settings = training.label_smoothing, training.r_drop, prior
        objective: LanguageModelObjective
        if recipe.carries_state:
            objective = CarriedStateObjective(cast("RecurrentLM", model), *settings)
        elif data.attend_within_documents:
            reset = data.reset_positions
            objective = DocumentObjective(cast("DecoderOnly", model), *settings, reset_positions=reset)
        else:
            objective = LanguageModelObjective(model, *settings)
        if training.teacher is not None:
            check_teacher(model_folder(training.teacher), prepared.tokenizers.source, model.config.max_length, data)
            teacher = model_folder(training.teacher), training.teacher_weight, training.teacher_temperature
            objective.soft_targets = SoftTargets(*teacher)
        return objective

    def build_bundle(
        self, model: ContinuationModel, recipe: LanguageModelRecipe, prepared: RunData
    ) -> LanguageModelBundle:
        """Return the content of the model folder."""
        tokenizers, normalize = prepared.tokenizers, recipe.data.normalize
        settings: dict[str, Any] = {"normalize": normalize, "generation": tokenizers.defaults.generation}
        return LanguageModelBundle(recipe.task, model, tokenizers.source, **settings)

    def describe_for_model_card(self, recipe: LanguageModelRecipe, prepared: RunData) -> tuple[str, str]:
        """Return the title of the model card, and the size of the training data."""
        return "Language model", f"{prepared.train.num_tokens('target'):,} tokens"

    def load_predictor(self, folder: Path, **settings: Any) -> LanguageModel:
        """Load a :class:`~headway.predict.LanguageModel`."""
        from headway.predict import load_language_model

        return load_language_model(folder, **settings)
