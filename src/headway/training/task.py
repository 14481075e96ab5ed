"""The interface between training and tasks.

:mod:`headway.training` contains no code for particular tasks or architectures. It calls a :class:`Task` for everything
that differs between translation, classification and other tasks: how examples become batches, which model to build,
what to minimize, how to score the development set, and what a model folder contains. The tasks are in
:mod:`headway.tasks`, which training never imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from headway.bundle import NO_DEFAULTS, AnyBundle, DefaultOptions, default_token_template
from headway.data.batching import TokenDataset
from headway.data.store_builder import Shard
from headway.evaluation import Score
from headway.models.base import Model
from headway.text.base import TextTokenizer
from headway.text.special_tokens import SpecialTokenTemplate
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import TokenBatch


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target, which may be one object.

    ``imported_token_template`` is the special-token template of the model that training starts from, if it was imported
    or is a language model. ``defaults`` are the settings that came with that model.
    """

    source: TextTokenizer
    target: TextTokenizer
    imported_token_template: SpecialTokenTemplate | None = None
    defaults: DefaultOptions = NO_DEFAULTS

    @property
    def token_template(self) -> SpecialTokenTemplate:
        """The special-token template: the imported model's, or the template of Headway's own models."""
        return self.imported_token_template or default_token_template(self.source)


@dataclass(frozen=True)
class RunData:
    """Token stores and tokenizers of a run. Tasks subclass it to add their own data.

    ``dev_bytes`` is the number of bytes of the development text that the loss is summed over; None means that bits per
    byte are not reported. ``dev_unknown`` is the number of unknown tokens in this text, of which metrics.jsonl keeps a
    record.
    """

    train: TokenDataset
    dev: TokenDataset | None
    tokenizers: Tokenizers
    dev_bytes: int | None = field(default=None, kw_only=True)
    dev_unknown: int = field(default=0, kw_only=True)


class Objective(nn.Module):
    """Computes the summed loss of a batch, in nats. It is a module so that DDP can wrap it.

    Attributes:
        model: The model to train.
        is_per_token: Whether the loss is summed over target tokens, so that exp(mean loss) is a perplexity.
        carries_state: Whether a batch is computed from the state after the batch before it. Training then has one
            process, because the batches of a step depend on each other.
        carried_state: This state, as named tensors that checkpoints contain. Empty before the first batch, and in
            objectives that carry none.
    """

    model: Model
    is_per_token: ClassVar[bool] = True
    carries_state: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.carried_state: dict[str, Tensor] = {}

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over the batch's targets."""
        raise NotImplementedError

    def cross_entropy(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the cross-entropy without smoothing, regularization and class weights, summed over the targets."""
        raise NotImplementedError

    def dev_sums(self, batch: TokenBatch) -> Mapping[str, Float[Tensor, ""]]:
        """Return the values that validation sums over all targets and reports per target.

        They are the cross-entropy, as "loss", and other scores of the task.
        """
        return {"loss": self.cross_entropy(batch)}


RecipeT = TypeVar("RecipeT", bound=Recipe)
PreparedT = TypeVar("PreparedT", bound=RunData)
ModelT = TypeVar("ModelT", bound=nn.Module)


class Task(ABC, Generic[RecipeT, PreparedT, ModelT]):
    """A kind of task for which models are trained. :func:`headway.tasks.register` adds one.

    Attributes:
        kind: The task's name, as in ``task.kind`` of recipes and model folders.
        recipe_type: The recipe class, which adds the task's defaults and checks. Its ``capability`` describes what the
            models do, and therefore determines the suitable architectures, commands and routes.
        bundle_type: The class that reads and writes model folders.
        command: The ``headway`` command that uses a trained model.
        throughput_unit: Unit of throughput in progress reports.
    """

    kind: ClassVar[str]
    recipe_type: type[RecipeT]
    bundle_type: ClassVar[type[AnyBundle]]
    command: ClassVar[str]
    throughput_unit: ClassVar[Literal["tokens", "texts"]] = "tokens"

    @abstractmethod
    def prepare(self, recipe: RecipeT, run: Path, listener: Listener, shard: Shard | None = None) -> PreparedT | None:
        """Build the tokenizers and token stores in the folder ``run``, or load them from there.

        ``recipe`` is complete (:func:`headway.training.fine_tuning.complete_recipe`). Returns None if parts of other
        shards are missing; this cannot happen if ``shard`` is None.
        """

    @abstractmethod
    def build_model(self, recipe: RecipeT, prepared: PreparedT) -> ModelT:
        """Build the recipe's model with random weights. Raises :class:`ConfigError` if it does not fit the data."""

    @abstractmethod
    def build_objective(self, model: ModelT, recipe: RecipeT, prepared: PreparedT) -> Objective:
        """Return the training objective of ``model``."""

    def dev_scores(self, bundle: Any, recipe: RecipeT) -> Sequence[Score]:
        """Return a model's scores on the development set, in addition to what the objective computes.

        The result is empty if the recipe asks only for the loss, and by default.
        """
        return ()

    def selection_metric(self, recipe: RecipeT) -> str:
        """Return the score by which the best model is selected: "loss", or the name of one of :meth:`dev_scores` in
        lower case, with underscores.

        By default it is ``validation.metric``. A task may choose another one if that metric says nothing on its data.
        """
        return recipe.validation.metric

    @abstractmethod
    def build_bundle(self, model: ModelT, recipe: RecipeT, prepared: PreparedT) -> AnyBundle:
        """Return the content of the model folder."""

    def complete_model_folder(self, folder: Path, recipe: RecipeT) -> None:
        """Add files that the predictor needs, besides the bundle, to the model folder of a finished run.

        Default: none.
        """

    @abstractmethod
    def describe_for_model_card(self, recipe: RecipeT, prepared: PreparedT) -> tuple[str, str]:
        """Return the model card's title, and a phrase that states the size of the training data."""

    @abstractmethod
    def load_predictor(self, folder: Path, **settings: Any) -> Any:
        """Load the object that applies the model in ``folder`` to text."""
