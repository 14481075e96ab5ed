"""The interface between training and tasks.

:mod:`headway.training` contains no code for particular tasks or architectures. It calls a :class:`Task` for everything
that differs between translation, classification and other tasks: preparing data, building the model, the training
objective, development scores, and the content of a model folder. The tasks are in :mod:`headway.tasks`, which training
never imports.
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
    """The source and target tokenizers, which may be the same object.

    ``imported_token_template`` is the special-token template of the initial model, if it was imported or is a language
    model. ``defaults`` are the default options of the initial model.
    """

    source: TextTokenizer
    target: TextTokenizer
    imported_token_template: SpecialTokenTemplate | None = None
    defaults: DefaultOptions = NO_DEFAULTS

    @property
    def token_template(self) -> SpecialTokenTemplate:
        """The imported template, or the default template of models trained with Headway."""
        return self.imported_token_template or default_token_template(self.source)


@dataclass(frozen=True)
class RunData:
    """Token stores and tokenizers of a run. Tasks define subclasses with additional data.

    ``num_dev_bytes`` is the number of bytes in the development text over which the loss is summed; None means that bits
    per byte are not reported. ``num_dev_unknown`` is the number of unknown tokens in this text, which is recorded in
    metrics.jsonl.
    """

    train: TokenDataset
    dev: TokenDataset | None
    tokenizers: Tokenizers
    num_dev_bytes: int | None = field(default=None, kw_only=True)
    num_dev_unknown: int = field(default=0, kw_only=True)


class Objective(nn.Module):
    """Computes the summed loss of a batch, in nats. It is an ``nn.Module`` so that DDP can wrap it.

    Attributes:
        model: The model to train.
        reports_perplexity: Whether exp(mean loss) is reported as the perplexity. The loss is then summed over target
            tokens.
        carries_state: Whether each batch starts from the state after the previous batch. Training then uses a single
            process, because the batches of a step depend on each other.
        carried_state: The carried state, as named tensors that are saved in checkpoints. Empty before the first batch,
            and for objectives that do not carry state.
    """

    model: Model
    reports_perplexity: ClassVar[bool] = True
    carries_state: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.carried_state: dict[str, Tensor] = {}

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over the batch's targets."""
        raise NotImplementedError

    def cross_entropy(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the cross-entropy without smoothing, regularization or class weights, summed over the targets."""
        raise NotImplementedError

    def dev_sums(self, batch: TokenBatch) -> Mapping[str, Float[Tensor, ""]]:
        """Return the values that validation adds up over all batches and reports per target.

        These are the cross-entropy, as "loss", and possibly other scores of the task.
        """
        return {"loss": self.cross_entropy(batch)}


RecipeT = TypeVar("RecipeT", bound=Recipe)
PreparedT = TypeVar("PreparedT", bound=RunData)
ModelT = TypeVar("ModelT", bound=nn.Module)


class Task(ABC, Generic[RecipeT, PreparedT, ModelT]):
    """Base class of the tasks for which models are trained. :func:`headway.tasks.register` adds a task.

    Attributes:
        kind: The task's name: the value of ``task.kind`` in recipes and model folders.
        recipe_type: The recipe class, which adds the task's defaults and checks. Its ``capability`` determines which
            architectures, commands and service endpoints are suitable.
        bundle_type: The bundle class, which reads and writes model folders.
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
        """Build the tokenizers and token stores in the folder ``run``, or load them if they already exist.

        ``recipe`` is complete (:func:`headway.training.fine_tuning.complete_recipe`). Returns None if other shards are
        not finished yet; this cannot happen if ``shard`` is None.
        """

    @abstractmethod
    def build_model(self, recipe: RecipeT, prepared: PreparedT) -> ModelT:
        """Build the recipe's model with random weights, or raise :class:`ConfigError` if it does not fit the data."""

    @abstractmethod
    def build_objective(self, model: ModelT, recipe: RecipeT, prepared: PreparedT) -> Objective:
        """Return the training objective of ``model``."""

    def dev_scores(self, bundle: Any, recipe: RecipeT) -> Sequence[Score]:
        """Return development scores of a model, in addition to the values that the objective computes.

        The result is empty by default, and if the recipe requires only the loss.
        """
        return ()

    def selection_metric(self, recipe: RecipeT) -> str:
        """Return the metric by which the best model is selected: "loss", or the name of a score from :meth:`dev_scores`
        in lower case, with underscores.

        The default is ``validation.metric``. A task may choose another metric if this one is not informative on its
        data.
        """
        return recipe.validation.metric

    @abstractmethod
    def build_bundle(self, model: ModelT, recipe: RecipeT, prepared: PreparedT) -> AnyBundle:
        """Return the content of the model folder."""

    def complete_model_folder(self, folder: Path, recipe: RecipeT) -> None:
        """Add files to the model folder of a finished run that the predictor needs in addition to the bundle.

        By default, no files are added.
        """

    @abstractmethod
    def describe_for_model_card(self, recipe: RecipeT, prepared: PreparedT) -> tuple[str, str]:
        """Return the title of the model card, and a phrase that states the size of the training data."""

    @abstractmethod
    def load_predictor(self, folder: Path, **settings: Any) -> Any:
        """Load the model in ``folder`` as an object for inference."""
