"""Masked language modeling: predict masked tokens of a text from the tokens on both sides.

Documents are joined by EOS and divided into blocks, each enclosed in BOS and EOS. :mod:`headway.data.masking` masks
some tokens of each block, different ones in each epoch. The loss is the cross-entropy of the original tokens at these
positions; logits are computed only there.

Validation reports the loss per masked token, in nats, and the share of masked tokens that the model predicts correctly
(``masked_accuracy``). All runs with the same tokenizer and ``data.masking`` mask the same tokens of the development
set. The loss is not a likelihood of the text, so no perplexity or bits per byte are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from headway.bundle import MaskedLanguageModelBundle
from headway.data.masking import MaskedBlockDataset, Masking, MaskingConfig
from headway.data.store_builder import Shard
from headway.kinds import Capability
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.registry import ModelConfig, build_model
from headway.tasks.smoothing_prior import smoothing_prior
from headway.tasks.text_blocks import BlockRecipe, TextDataConfig, prepare_blocks
from headway.tasks.token_objective import TokenObjective
from headway.text.base import MASK, TextTokenizer
from headway.training.report import Listener
from headway.training.stream import TokenBatch
from headway.training.task import RunData, Task

if TYPE_CHECKING:
    from headway.predict import MaskedLanguageModel

_ROWS_AT_ONCE = 1024  # maximum number of rows of logits computed at a time in validation


class MaskedTextConfig(TextDataConfig):
    """Configuration of the training and validation documents, and of masking."""

    masking: MaskingConfig = Field(default_factory=MaskingConfig, description="Which tokens are masked, and how.")


class MaskedLanguageModelRecipe(BlockRecipe):
    """The recipe of a masked language model."""

    capability: ClassVar[Capability] = "fills"
    default_model: ClassVar[str] = "masked"

    data: MaskedTextConfig
    model: ModelConfig = Field(default_factory=MaskedConfig)

    @model_validator(mode="after")
    def _check_masked_language_model(self) -> MaskedLanguageModelRecipe:
        if self.training.teacher is not None:
            raise ValueError("training.teacher has no effect on this task; remove the key")
        if self.data.attend_within_documents:
            raise ValueError(
                "data.attend_within_documents = true needs a decoder_only model: a masked language model attends to "
                "whole blocks; remove the key"
            )
        return self


class MaskedLanguageModelObjective(TokenObjective):
    """The cross-entropy of the masked tokens in a batch."""

    model: MaskedTransformer
    reports_perplexity: ClassVar[bool] = False  # the exponential of the loss is not the perplexity of the text

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the model's input tokens: the masked blocks."""
        return (batch.source,)

    def outputs(self, states: Float[Tensor, "B T D"], batch: TokenBatch) -> Float[Tensor, "N D"]:
        """Return the state from which the projection computes logits, for each masked token."""
        head: Tensor = self.model.head(super().outputs(states, batch))
        return head

    def dev_sums(self, batch: TokenBatch) -> Mapping[str, Float[Tensor, ""]]:
        """Return the summed cross-entropy, and the number of masked tokens that are predicted correctly."""
        states = self.outputs(self.states(batch.source), batch)
        loss, correct = states.new_zeros(2, dtype=torch.float32)
        for some, targets in zip(
            torch.split(states, _ROWS_AT_ONCE), torch.split(batch.targets, _ROWS_AT_ONCE), strict=True
        ):
            logits = self.model.projection(some).float()
            loss = loss + F.cross_entropy(logits, targets, reduction="sum")
            correct = correct + (logits.argmax(-1) == targets).sum()
        return {"loss": loss, "masked_accuracy": correct}


class MaskedLanguageModelTask(Task[MaskedLanguageModelRecipe, RunData, MaskedTransformer]):
    """The masked language modeling task."""

    kind: ClassVar[str] = "masked_language_model"
    recipe_type = MaskedLanguageModelRecipe
    bundle_type = MaskedLanguageModelBundle
    command: ClassVar[str] = "fill"

    def prepare(
        self, recipe: MaskedLanguageModelRecipe, run: Path, listener: Listener, shard: Shard | None = None
    ) -> RunData | None:
        """Train the tokenizer and tokenize the corpora, or load existing results from the run folder."""

        def dataset_type(tokenizer: TextTokenizer) -> partial[MaskedBlockDataset]:
            masking = Masking(recipe.data.masking, tokenizer)
            seed, order_version = recipe.training.seed, recipe.data.order_version
            return partial(MaskedBlockDataset, masking=masking, seed=seed, order_version=order_version)

        blocks = prepare_blocks(recipe, run, listener, shard, (self.kind,), dataset_type, (MASK,))
        return None if blocks is None else RunData(*blocks)

    def build_model(self, recipe: MaskedLanguageModelRecipe, prepared: RunData) -> MaskedTransformer:
        """Build the model."""
        size = prepared.tokenizers.source.vocab_size
        return cast("MaskedTransformer", build_model(recipe.model, size, size))

    def build_objective(
        self, model: MaskedTransformer, recipe: MaskedLanguageModelRecipe, prepared: RunData
    ) -> MaskedLanguageModelObjective:
        """Return the cross-entropy objective with the recipe's settings."""
        prior = smoothing_prior(recipe, prepared, prepared.tokenizers.source.vocab_size)
        return MaskedLanguageModelObjective(model, recipe.training.label_smoothing, recipe.training.r_drop, prior)

    def build_bundle(
        self, model: MaskedTransformer, recipe: MaskedLanguageModelRecipe, prepared: RunData
    ) -> MaskedLanguageModelBundle:
        """Return the content of the model folder."""
        return MaskedLanguageModelBundle(recipe.task, model, prepared.tokenizers.source, recipe.data.normalize)

    def describe_for_model_card(self, recipe: MaskedLanguageModelRecipe, prepared: RunData) -> tuple[str, str]:
        """Return the title of the model card, and the size of the training data."""
        return "Masked language model", f"{prepared.train.num_tokens('source'):,} tokens"

    def load_predictor(self, folder: Path, **settings: Any) -> MaskedLanguageModel:
        """Load a :class:`~headway.predict.MaskedLanguageModel`."""
        from headway.predict import load_masked_language_model

        return load_masked_language_model(folder, **settings)
