"""The seam between training and tasks: what the trainer asks of a task.

:mod:`headway.train` knows no task and no architecture. It receives a :class:`Task` and calls it for everything that
differs between translation, classification and whatever comes next: how examples become batches, which model to build,
what to minimize, how to score the development set, and what a model folder contains. The tasks themselves are in
:mod:`headway.tasks`, which training never imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from headway.bundle import AnyBundle
from headway.data.batching import TokenDataset
from headway.data.store_builder import Shard
from headway.evaluate import Score
from headway.models.registry import Model
from headway.text.base import TextTokenizer
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.stream import TokenBatch

__all__ = ["Objective", "Prepared", "Task"]


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and token stores of a run. Tasks subclass it to add what they need themselves."""

    train: TokenDataset
    dev: TokenDataset | None
    source_tokenizer: TextTokenizer


class Objective(nn.Module):
    """Computes the summed loss of a batch, in nats: a module, so that it can be wrapped by DDP or FSDP2.

    Attributes:
        model: The model that is trained.
        compute: The model's share of the forward pass. The trainer may replace it with its ``torch.compile`` form.
        per_token: Whether the loss is summed over target tokens, so that exp(mean loss) is a perplexity.
    """

    model: Model
    compute: Callable[..., Tensor]
    per_token: ClassVar[bool] = True

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over the batch's targets."""
        raise NotImplementedError

    def cross_entropy(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the cross-entropy alone, summed over the targets: no smoothing, no regularization, no weights."""
        raise NotImplementedError


RecipeT = TypeVar("RecipeT", bound=Recipe)
PreparedT = TypeVar("PreparedT", bound=Prepared)


@runtime_checkable
class Task(Protocol[RecipeT, PreparedT]):
    """One kind of task.

    Attributes:
        kind: The task's name: ``task.kind`` in recipes and model folders.
        recipe_type: The recipe class, which adds the task's defaults and checks.
        command: The ``headway`` command that uses a trained model.
        unit: What throughput counts, for progress reports.
    """

    kind: ClassVar[str]
    recipe_type: type[RecipeT]
    command: ClassVar[str]
    unit: ClassVar[Literal["tokens", "texts"]]

    def prepare(self, recipe: RecipeT, run: Path, listener: Listener, shard: Shard | None = None) -> PreparedT | None:
        """Build the tokenizers and token stores in the folder ``run``, or find them there.

        ``recipe`` is complete (:func:`headway.train.fine_tuning.complete_recipe`). Returns None if parts of other
        shards are missing, which cannot happen without ``shard``.
        """

    def build_model(self, recipe: RecipeT, prepared: PreparedT) -> Model:
        """Build the recipe's model with fresh weights; :class:`ConfigError` if it cannot read the prepared data."""

    def objective(self, model: Model, recipe: RecipeT, prepared: PreparedT) -> Objective:
        """Return the training objective of ``model``."""

    def dev_scores(self, bundle: Any, recipe: RecipeT) -> Sequence[Score]:
        """Score a model on the development set by using it; empty if the recipe asks for the loss only."""

    def bundle(self, model: Model, recipe: RecipeT, prepared: PreparedT) -> AnyBundle:
        """Return the model folder's content."""

    def summary(self, recipe: RecipeT, prepared: PreparedT) -> tuple[str, str]:
        """Return the model card's title, and the size of the training data in words."""

    def predictor(self, folder: Path, **settings: Any) -> Any:
        """Load the object that applies the model in ``folder`` to text."""
