"""The classification task: assign one label to each text.

The training loss is the label-smoothed cross-entropy of the labels, optionally with class weights and R-Drop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from headway.bundle import ClassifierBundle, TaskConfig, read_config
from headway.config import format_list
from headway.data.bad_lines import SKIP_HINT, BadLines
from headway.data.encoding import SideSpec
from headway.data.labels import LabelEncoder, count_labels, read_labeled_texts
from headway.data.readers import Corpus
from headway.data.store import FilterConfig, fingerprint
from headway.data.store_builder import Shard
from headway.errors import ConfigError, DataError
from headway.evaluation import Score, evaluate_classes
from headway.interop.hub import model_folder
from headway.kinds import Capability
from headway.models.base import ClassificationModel
from headway.models.classifier import ClassifierConfig
from headway.models.registry import ModelConfig, build_model
from headway.nn.loss import label_smoothed_cross_entropy, r_drop_loss
from headway.storage import atomic_write_text
from headway.tasks.smoothing_prior import smoothing_prior
from headway.text.base import EOS, TextTokenizer
from headway.text.bpe_dropout import BPEDropoutEncoder
from headway.text.corpus_encoder import CorpusEncoder
from headway.text.normalization import normalize
from headway.training.cache_keys import CacheKey, corpus_options, is_version_1
from headway.training.prepare import BpeSampling, CorpusEncoding, DataPreparation
from headway.training.recipe import Recipe, ValidationConfig
from headway.training.report import Listener
from headway.training.snapshot import checkpoint_folders
from headway.training.stream import TokenBatch
from headway.training.task import Objective, RunData, Task

if TYPE_CHECKING:
    from headway.predict import Classifier


# No length limits, because long texts are truncated instead. All other options are inert, so they remove nothing.
_ALL_BUT_EMPTY = FilterConfig.parse_saved({"max_length": 1 << 40, "max_length_ratio": 1e12}, "filter")


class ClassificationValidation(ValidationConfig):
    """Configuration of validation for classifiers."""

    metric: Literal["accuracy", "macro_f1", "loss"] = Field(
        "accuracy", description="Score by which the best model is selected."
    )


class ClassificationRecipe(Recipe):
    """The recipe of a text classifier."""

    capability: ClassVar[Capability] = "labels"
    default_model: ClassVar[str] = "classifier"

    model: ModelConfig = Field(default_factory=ClassifierConfig)
    validation: ClassificationValidation = Field(default_factory=ClassificationValidation)

    @model_validator(mode="after")
    def _check_classification(self) -> ClassificationRecipe:
        corpora = [*self.data.train, *([self.data.dev] if self.data.dev else [])]
        given = {
            "data.filter": not self.data.filter.is_default,
            "tokenizer.joint = false": not self.tokenizer.joint,
            "source_language": any(corpus.source_language for corpus in corpora),
            "target_language": any(corpus.target_language for corpus in corpora),
            "task.target_language": self.task.target_language != TaskConfig().target_language,
            "validation.beam_size": self.validation.beam_size != 1,
        }
        self.refuse_options(
            given,
            "classification has no target text; remove the key (texts longer than model.max_length are truncated)",
        )
        return self

    @property
    def max_batch_examples(self) -> int | None:
        """The maximum number of examples in a batch, considering the length to which the model pads texts."""
        model, data = cast("ClassifierConfig", self.model), self.data
        if not model.pad_to_max_length:
            return data.max_examples
        fitting = max(data.max_tokens // model.max_length, 1)
        return fitting if data.max_examples is None else min(fitting, data.max_examples)


@dataclass(frozen=True)
class ClassificationData(RunData):
    """Data of a classifier. ``label_counts`` maps labels, in class order, to their numbers of training texts."""

    label_counts: Mapping[str, int]


class ClassificationObjective(Objective):
    """The label-smoothed cross-entropy of a batch of labeled texts, optionally with class weights."""

    model: ClassificationModel
    prior: Tensor | None
    class_weights: Tensor | None
    reports_perplexity: ClassVar[bool] = False

    def __init__(
        self,
        model: ClassificationModel,
        label_smoothing: float,
        r_drop: float = 0.0,
        prior: Float[Tensor, " C"] | None = None,
        *,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop
        device = model.projection.weight.device
        self.register_buffer("prior", None if prior is None else prior.to(device), persistent=False)
        weights = None if class_weights is None else torch.tensor(class_weights, device=device)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the loss, summed over the batch's texts. Labels are stored as tokens: class index + 1."""
        labels = batch.targets - 1
        if self.r_drop:
            first, second = self.model(batch.source.repeat(2, 1)).float().chunk(2)
            losses = r_drop_loss(first, second, labels, self.label_smoothing, self.r_drop, self.prior)
        else:
            logits = self.model(batch.source).float()
            losses = label_smoothed_cross_entropy(logits, labels, self.label_smoothing, self.prior)
        if self.class_weights is not None:
            losses = losses * self.class_weights[labels]
        return losses.sum()

    def cross_entropy(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the cross-entropy without smoothing, class weights or R-Drop."""
        return label_smoothed_cross_entropy(self.model(batch.source).float(), batch.targets - 1).sum()


def balanced_weights(class_counts: Mapping[str, int]) -> list[float]:
    """Return class weights n / (C n_c), with which all classes have the same total weight. Their mean over texts is 1.

    ``class_counts`` contains the number of texts n_c of each class in the files, regardless of corpus weights.
    """
    total = sum(class_counts.values())
    return [total / (len(class_counts) * count) for count in class_counts.values()]


class ClassificationTask(Task[ClassificationRecipe, ClassificationData, ClassificationModel]):
    """The classification task."""

    kind: ClassVar[str] = "classification"
    recipe_type = ClassificationRecipe
    bundle_type = ClassifierBundle
    command: ClassVar[str] = "classify"
    throughput_unit = "texts"

    def prepare(
        self, recipe: ClassificationRecipe, run: Path, listener: Listener, shard: Shard | None = None
    ) -> ClassificationData | None:
        """Count labels, train the tokenizer and tokenize the corpora, or load existing results from the run folder."""
        preparation = DataPreparation(recipe, run, listener, shard)
        preparation.check_dev_set(read_labeled_texts)
        labels = _labels(recipe, preparation)
        if recipe.validation.metric != "loss":
            _read_dev(recipe)
        tokenizers = preparation.make_tokenizers(read_labeled_texts, (0,), self.kind)
        model = cast("ClassifierConfig", recipe.model)
        encode = partial(_encoding, tokenizers.source, tuple(labels), model.max_length, preparation.data_folder)
        datasets = preparation.load_or_build_datasets(encode, _ALL_BUT_EMPTY)
        return None if datasets is None else ClassificationData(*datasets, tokenizers, labels)

    def build_model(self, recipe: ClassificationRecipe, prepared: ClassificationData) -> ClassificationModel:
        """Build the model with one output per label."""
        model = build_model(recipe.model, prepared.tokenizers.source.vocab_size, len(prepared.label_counts))
        return cast("ClassificationModel", model)

    def build_objective(
        self, model: ClassificationModel, recipe: ClassificationRecipe, prepared: ClassificationData
    ) -> ClassificationObjective:
        """Return the label-smoothed cross-entropy objective with the recipe's settings."""
        training = recipe.training
        weights = balanced_weights(prepared.label_counts) if training.class_weights == "balanced" else None
        prior = smoothing_prior(recipe, prepared, 1 + len(prepared.label_counts))  # class i is stored as token i + 1
        prior = None if prior is None else prior[1:]
        return ClassificationObjective(model, training.label_smoothing, training.r_drop, prior, class_weights=weights)

    def dev_scores(self, bundle: ClassifierBundle, recipe: ClassificationRecipe) -> Sequence[Score]:
        """Classify the development set and return accuracy, macro F1 and calibration error."""
        from headway.predict import Classifier

        if recipe.data.dev is None or recipe.validation.metric == "loss":
            return ()
        examples = _read_dev(recipe)
        classifications = Classifier(bundle).classify([text for text, _ in examples])
        report = evaluate_classes(
            [classification.label for classification in classifications],
            [label for _, label in examples],
            bundle.labels,
            confidences=[classification.probability for classification in classifications],
            bootstrap=0,
        )
        return list(report.scores)

    def build_bundle(
        self, model: ClassificationModel, recipe: ClassificationRecipe, prepared: ClassificationData
    ) -> ClassifierBundle:
        """Return the content of the model folder."""
        labels, normalize = tuple(prepared.label_counts), recipe.data.normalize
        return ClassifierBundle(recipe.task, model, prepared.tokenizers.source, labels, normalize)

    def describe_for_model_card(self, recipe: ClassificationRecipe, prepared: ClassificationData) -> tuple[str, str]:
        """Return the title of the model card, and the size of the training data."""
        counts = ", ".join(f"{label} {count:,}" for label, count in prepared.label_counts.items())
        return (
            f"Classification of texts as {', '.join(prepared.label_counts)}",
            f"{len(prepared.train):,} texts ({prepared.train.num_tokens('source'):,} tokens; {counts})",
        )

    def load_predictor(self, folder: Path, **settings: Any) -> Classifier:
        """Load a :class:`~headway.predict.Classifier`."""
        from headway.predict import load_classifier

        return load_classifier(folder, **settings)


def _read_dev(recipe: ClassificationRecipe) -> list[tuple[str, str]]:
    """Read the development set, if any.

    Raises:
        DataError: A text is empty, so that it cannot be classified.
    """
    dev = recipe.data.dev
    examples = (
        list(read_labeled_texts(dev, Path(recipe.data.folder), bad_lines=BadLines(recipe.data.on_error, SKIP_HINT)))
        if dev
        else []
    )
    for number, (text, _) in enumerate(examples, start=1):
        if dev and not text.strip():
            raise DataError(f"{dev.shown_files}, example {number:,}: the text is empty; expected text in every example")
    return examples


def _encoding(
    tokenizer: TextTokenizer,
    labels: tuple[str, ...],
    max_length: int,
    folder: Path,
    corpus: Corpus,
    sampling: BpeSampling | None,
) -> CorpusEncoding:
    def sides() -> tuple[SideSpec, SideSpec]:
        sampler = BPEDropoutEncoder(tokenizer, *sampling) if sampling else None
        text = SideSpec(CorpusEncoder(tokenizer), sampler, suffix_ids=(EOS,), max_length=max_length)
        return text, SideSpec(LabelEncoder(labels), LabelEncoder(labels, sampling[1]) if sampling else None)

    keys = (tokenizer.fingerprint, labels)
    return CorpusEncoding(
        partial(read_labeled_texts, corpus, folder, labels),
        sides,
        keys,
        {"max_length": max_length},
        ("the tokenizer has changed", "the labels have changed"),
    )


def _labels(recipe: ClassificationRecipe, preparation: DataPreparation) -> Mapping[str, int]:
    """Return the number of training texts per label, in class order.

    The counts are stored in tokens/labels.json and reused as long as the files are unchanged. A started run keeps its
    class order, even if the model folder from which it started has changed since then.
    """
    start, run = recipe.training.start_from, preparation.run
    folder, corpora = preparation.data_folder, recipe.data.train
    files, path = [(file, corpus) for corpus in corpora for file in corpus.files], run / "tokens" / "labels.json"
    hashes = preparation.hash_files(*corpora)
    contents = [(digest, corpus.fields) for (_, digest), (_, corpus) in zip(hashes, files, strict=True)]
    on_error = recipe.data.on_error
    options: dict[str, Any] = {"corpora": [corpus_options(corpus) for _, corpus in files]}
    options |= {} if on_error == "refuse" else {"on_error": on_error}
    key = CacheKey(hashes, options, fingerprint(contents) if is_version_1(corpora) and on_error == "refuse" else None)
    counts = _saved_labels(path, key)
    if counts is None or (start is not None and not checkpoint_folders(run / "checkpoints")):
        counts = count_labels(corpora, folder, on_error)
        counts = counts if start is None else _ordered(counts, model_folder(start))
        atomic_write_text(path, json.dumps({"key": key.value, "labels": counts}, ensure_ascii=False))
    if single := [label for label, count in counts.items() if count < 2]:
        shown = format_list([repr(label) for label in single])
        preparation.listener.on_message(
            f"{len(single):,} of {len(counts):,} labels have only one training text ({shown}), from which a model "
            "cannot generalize; check that the label is in the first column or named in fields"
        )
    return counts


def _saved_labels(path: Path, key: CacheKey) -> dict[str, int] | None:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return dict(saved["labels"]) if saved["key"] in key.valid_values else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ordered(counts: Mapping[str, int], start: Path) -> dict[str, int]:
    """Return ``counts`` in the class order of the model folder ``start`` if it contains a classifier."""
    labels = read_config(start).labels
    if not labels:  # a language model
        return dict(counts)
    normal = {label: normalize(label) for label in labels}
    if set(normal.values()) != set(counts):
        raise ConfigError(
            f"training.start_from = {str(start)!r}: the model's labels are {format_list(labels)}, but the labels in "
            f"the training data are {format_list(list(counts))}. Fine-tuning needs the same set of labels: rename or "
            "add labels in the data, or train a new model without start_from"
        )
    return {label: counts[normal[label]] for label in labels}
