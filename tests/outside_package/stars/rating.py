"""A task: assign a number of stars to a text. The development set is also scored by ratings that are nearly right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from headway.bundle import ClassifierBundle
from headway.data.labels import read_labeled_texts
from headway.evaluation import Score
from headway.models.registry import ModelConfig
from headway.predict import Classifier
from headway.tasks.classification import ClassificationRecipe, ClassificationTask
from stars.bag_of_words import BagOfWordsConfig


class RatingRecipe(ClassificationRecipe):
    """The recipe of a model that rates texts."""

    default_model: ClassVar[str] = "bag_of_words"

    model: ModelConfig = Field(default_factory=BagOfWordsConfig)


class Rater(Classifier):
    """Assigns a number of stars to a text."""

    def rate(self, text: str) -> float:
        """Return the expected number of stars."""
        return sum(int(label) * share for label, share in self.classify(text).probabilities.items())


class RatingTask(ClassificationTask):
    kind = "rating"
    recipe_type = RatingRecipe

    def dev_scores(self, bundle: ClassifierBundle, recipe: ClassificationRecipe) -> Sequence[Score]:
        dev = recipe.data.dev
        examples = list(read_labeled_texts(dev, Path(recipe.data.folder))) if dev else []
        labels = [found.label for found in Classifier(bundle).classify([text for text, _ in examples])]
        near = [abs(int(label) - int(truth)) <= 1 for label, (_, truth) in zip(labels, examples, strict=True)]
        share = 100 * sum(near) / max(len(near), 1)
        return [*super().dev_scores(bundle, recipe), Score("within one star", share, "stars:1")]

    def load_predictor(self, folder: Path, **settings: Any) -> Rater:
        return Rater(
            ClassifierBundle.load(folder), device="cpu", **{k: v for k, v in settings.items() if k != "device"}
        )
