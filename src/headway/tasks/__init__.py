"""The tasks for which Headway trains models, one per file.

To add a task, implement :class:`headway.training.task.Task` in a file here, and add it to :data:`TASKS` and to
:data:`headway.bundle.BUNDLE_TYPES`. Another package calls :func:`register` (:mod:`headway.kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.bundle import BUNDLE_TYPES, read_config
from headway.config import apply_overrides, read_toml
from headway.errors import ConfigError
from headway.interop.hub import model_folder
from headway.kinds import KindRegistry
from headway.predict.presentation import ModelWrapper
from headway.tasks.classification import ClassificationTask
from headway.tasks.language_model import LanguageModelTask
from headway.tasks.masked_language_model import MaskedLanguageModelTask
from headway.tasks.translation import TranslationTask
from headway.training.recipe import Recipe
from headway.training.task import Task

if TYPE_CHECKING:
    from headway.training.loop import Result
    from headway.training.report import Listener

__all__ = [
    "TASKS",
    "load",
    "load_recipe",
    "parse_recipe",
    "parse_saved_recipe",
    "recipe_type_of",
    "register",
    "task_of",
    "train",
]

_TASKS = (TranslationTask(), ClassificationTask(), LanguageModelTask(), MaskedLanguageModelTask())
TASKS: KindRegistry[Task[Any, Any, Any]] = KindRegistry("task.kind", {task.kind: task for task in _TASKS}, type)


def register(task: Task[Any, Any, Any]) -> None:
    """Register a task, so that recipes and model folders can use it as ``task.kind``.

    Its models are trained by ``headway train``, loaded by :func:`load`, and used by all commands and service endpoints
    that require the capability of its recipes.

    Raises:
        ConfigError: The kind is already registered, or the recipe and bundle classes have different capabilities.
    """
    if task.recipe_type.capability != task.bundle_type.capability:
        raise ConfigError(
            f"task.kind = {task.kind!r}: its recipe is for a model that {task.recipe_type.capability}, but its bundle "
            f"is for a model that {task.bundle_type.capability}; use the same capability for both"
        )
    BUNDLE_TYPES.register(task.kind, task.bundle_type)
    TASKS.register(task.kind, task)


def task_of(recipe: Recipe) -> Task[Any, Any, Any]:
    """Return the task for which ``recipe`` trains a model."""
    return TASKS[recipe.task.kind]


def parse_recipe(data: Mapping[str, Any], origin: str) -> Recipe:
    """Validate a recipe. ``task.kind`` selects the recipe class, and error messages begin with ``origin``."""
    return recipe_type_of(data).parse(data, origin)


def parse_saved_recipe(data: Mapping[str, Any], origin: str) -> Recipe:
    """Validate the recipe of a run, which this or an earlier version of Headway wrote to ``origin``."""
    return recipe_type_of(data).parse_saved(data, origin)


def recipe_type_of(data: Mapping[str, Any]) -> type[Recipe]:
    """Return the recipe class that ``task.kind`` selects. An unknown kind is rejected later, by validation."""
    section = data.get("task")
    kind = section.get("kind", "translation") if isinstance(section, Mapping) else "translation"
    recipe_type: type[Recipe] = TASKS.get(str(kind), TASKS["translation"]).recipe_type
    return recipe_type


def load_recipe(path: str | Path, assignments: Sequence[str] = ()) -> Recipe:
    """Read a recipe file and apply ``section.key=value`` assignments from the command line."""
    path = Path(path)
    recipe = parse_recipe(apply_overrides(read_toml(path), assignments), str(path))
    recipe.refuse_options_without_effect(str(path))
    return recipe


def train(recipe: Recipe, run: str | Path, *, listener: Listener | None = None) -> Result:
    """Train a model in the folder ``run``; see :func:`headway.training.loop.train`."""
    run = Path(run)
    from headway.training import loop

    return loop.train(task_of(recipe), recipe, run, listener=listener)


def load(folder: str | Path, *, revision: str | None = None, **settings: Any) -> Any:
    """Load the model in ``folder``, and return a Translator, Classifier, LanguageModel or MaskedLanguageModel.

    The model may be of another class if its task is defined in another package.

    Args:
        folder: The model folder, or the name of a model on the Hugging Face Hub, such as
            ``hf:Helsinki-NLP/opus-mt-de-en`` (:mod:`headway.interop.hub`). It is downloaded and converted once.
        revision: A branch, a tag or a commit on the Hub. None means "main".
        settings: Keyword arguments of :func:`headway.predict.load_translator` or of the function for the model's task.
            All of them have ``device``: "auto" (the default: a GPU if there is one), "cpu", "cuda" or another PyTorch
            device.

    Raises:
        BundleError: ``folder`` is not a model folder, or a file in it is missing or invalid.
        HubError: The model on the Hub does not exist, is not accessible, is damaged, or cannot be reached.
    """
    folder = model_folder(folder, revision)
    model = TASKS[read_config(folder).task.kind].load_predictor(folder, **settings)
    if isinstance(model, ModelWrapper):
        model.folder = folder
    return model
