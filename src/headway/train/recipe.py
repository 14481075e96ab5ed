"""The recipe: everything that a training run depends on, one section for each part that owns it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from headway.bundle import TaskConfig
from headway.config import Config, override, read_toml
from headway.data.readers import Corpus
from headway.data.store import FilterConfig
from headway.errors import CheckpointError, ConfigError
from headway.models.classifier import ClassifierConfig
from headway.models.recurrent import RecurrentConfig
from headway.models.registry import ModelConfig
from headway.models.transformer import TransformerConfig
from headway.text.tokenizer import TokenizerConfig
from headway.train.optim import OptimizerConfig, depends_on_length

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "Recipe",
    "TrainingConfig",
    "ValidationConfig",
    "changed_keys",
    "refuse_changes",
]


class DataConfig(Config):
    """Which text to train and validate on, and how it is cut into batches."""

    folder: str = Field(".", description="Where the files of all corpora are, relative to the working directory.")
    train: tuple[Corpus, ...] = Field(min_length=1, description="The training corpora.")
    dev: Corpus | None = Field(None, description="The development set; without one there is no validation.")
    filter: FilterConfig = Field(default_factory=FilterConfig, description="Which training examples are left out.")
    max_tokens: int = Field(
        4096, ge=1, description="Size of a batch: rows x the longer side, in tokens, padding included."
    )
    max_examples: int | None = Field(
        None, ge=1, description="Most examples in a batch; none: as many as max_tokens allow."
    )
    pool_size: int = Field(32768, ge=1, description="Examples sorted by length at a time; larger pools, less padding.")
    temperature: float | None = Field(
        None,
        ge=1,
        description="Several corpora: an epoch is as long as all of them, and corpus i has a share of it proportional "
        "to (weight x pairs)^(1/temperature); 1 keeps the sizes, higher ones favour small corpora; none: only the "
        "weights.",
    )
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability that a merge is left out when training text is segmented (BPE-dropout); bpe only.",
    )
    segmentations: int = Field(
        8, ge=1, description="With bpe_dropout: how many segmentations of each text are stored; epochs take turns."
    )

    @model_validator(mode="after")
    def _tag_all_or_none(self) -> DataConfig:
        """A model that was never asked for a language cannot be, and one that always was must be."""
        known = {corpus.target_language for corpus in self.train}
        if None in known and len(known) > 1:
            raise ValueError("train: some corpora have a target_language and others none; give it to all or to none")
        if self.dev and self.dev.source_language not in {corpus.source_language for corpus in self.train}:
            raise ValueError(
                f"dev: source_language is {self.dev.source_language or 'not given'}, and no corpus of train has that"
            )
        if self.dev and self.dev.target_language not in known:
            languages = ", ".join(sorted(language for language in known if language)) or "none"
            raise ValueError(
                f"dev: target_language is {self.dev.target_language or 'not given'}, "
                f"but those of train are: {languages}"
            )
        return self


class TrainingConfig(Config):
    """How long and how to train."""

    steps: int = Field(100_000, ge=1, description="Optimiser steps.")
    seed: int = Field(1, ge=0, description="Seed of initial weights, order and dropout.")
    accumulate: int = Field(1, ge=1, description="Batches that make one optimiser step.")
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="Probability taken from the target and spread over all tokens."
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none",
        description="Classification: what a class counts in the loss; balanced: all classes alike, however many texts "
        "of it the files have.",
    )
    r_drop: float = Field(
        0.0,
        ge=0,
        description="Weight of the divergence between two passes with different dropout (R-Drop); 0: one pass.",
    )
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Decay, for each step, of a moving average of the weights kept beside them; none: no.",
    )
    start_from: str | None = Field(
        None,
        description="A model folder, trained or imported, whose weights and tokenizers training starts from. What "
        "[model], tokenizer.joint and the languages of [task] leave out is then the model's; what [model] and "
        "[tokenizer] say must agree with it, but for dropout and for what is used only to learn a vocabulary. None: "
        "from scratch.",
    )
    freeze: tuple[str, ...] = Field(
        (), description="Weights that stay as they start, by name; * stands for anything, as in 'encoder.*'."
    )
    sharding: Literal["none", "full"] = Field(
        "none", description="Under torchrun: a whole model in each process (DDP), or a share of it (full, FSDP2)."
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="Whether torch.compile builds the model's kernels; auto: on a GPU."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Of matrix products; auto is bfloat16 where the hardware computes it, else float32."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where to train; auto is a GPU where there is one."
    )
    log_every: int = Field(50, ge=1, description="Steps between lines in metrics.jsonl.")


class ValidationConfig(Config):
    """How the development set is used."""

    every: int = Field(1000, ge=1, description="Steps between validations.")
    metric: Literal["bleu", "accuracy", "macro_f1", "loss"] = Field(
        "bleu", description="What decides which model is the best; classification's default is accuracy."
    )
    beam_size: int = Field(1, ge=1, description="Beam of the translations that BLEU is computed on.")
    patience: int | None = Field(None, ge=1, description="Validations without improvement after which training stops.")


class CheckpointConfig(Config):
    """When the training state is saved, and what is made of it."""

    every: int = Field(1000, ge=1, description="Steps between checkpoints.")
    keep: int = Field(5, ge=1, description="Newest checkpoints that are kept.")
    keep_best: int = Field(
        0, ge=0, description="Checkpoints that are kept beside these because their validation scores are the best."
    )
    average: int = Field(
        5, ge=0, description="Newest checkpoints whose mean becomes average/ at the end; 0 or 1: none."
    )

    @model_validator(mode="after")
    def _keep_what_is_averaged(self) -> CheckpointConfig:
        if self.average > self.keep:
            raise ValueError(f"average = {self.average} needs as many checkpoints; keep = {self.keep}: raise keep")
        return self


class Recipe(Config):
    """A complete training run."""

    task: TaskConfig = Field(default_factory=TaskConfig)
    data: DataConfig
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelConfig = Field(default_factory=TransformerConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    checkpoints: CheckpointConfig = Field(default_factory=CheckpointConfig)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_what_the_task_decides(cls, data: Any) -> Any:
        """An architecture that fits the task, and a metric."""
        if not isinstance(data, dict):
            return data
        task, model, validation = (data.get(name, {}) for name in ("task", "model", "validation"))
        kind = task.get("kind") if isinstance(task, dict) else getattr(task, "kind", None)
        classifies = kind == "classification"
        filled = dict(data)
        if isinstance(model, dict):
            filled["model"] = {"kind": "classifier" if classifies else "transformer", **model}
        if classifies and isinstance(validation, dict):
            filled["validation"] = {"metric": "accuracy", **validation}
        return filled

    @model_validator(mode="after")
    def _agree_on_the_task(self) -> Recipe:
        classifies = self.task.kind == "classification"
        if classifies != isinstance(self.model, ClassifierConfig):
            fitting = "classifier" if classifies else "transformer or recurrent"
            raise ValueError(
                f"model.kind = {self.model.kind!r} does not fit task.kind = {self.task.kind!r}, which takes {fitting}"
            )
        metrics = ("accuracy", "macro_f1", "loss") if classifies else ("bleu", "loss")
        if self.validation.metric not in metrics:
            raise ValueError(
                f"validation.metric = {self.validation.metric!r}: {self.task.kind} has {', '.join(metrics)}"
            )
        if classifies:
            self._refuse_what_needs_two_texts()
        elif self.training.class_weights != "none":
            raise ValueError("training.class_weights: translation has no classes; leave the key out")
        return self

    def _refuse_what_needs_two_texts(self) -> None:
        corpora = [*self.data.train, *([self.data.dev] if self.data.dev else [])]
        refused = {
            "data.filter": self.data.filter != FilterConfig(),
            "tokenizer.joint = false": not self.tokenizer.joint,
            "source_language": any(corpus.source_language for corpus in corpora),
            "target_language": any(corpus.target_language for corpus in corpora),
            "task.target_language": self.task.target_language != TaskConfig().target_language,
            "validation.beam_size": self.validation.beam_size != 1,
        }
        if wrong := [key for key, given in refused.items() if given]:
            raise ValueError(
                f"{wrong[0]}: a text that is classified has no other side; leave the key out (texts longer than "
                "model.max_length are cut)"
            )

    def _refuse_what_would_do_nothing(self, origin: str) -> None:
        """What somebody has just written; the recipe of a run that has begun is what it is."""
        data, model = self.data, self.model.as_dict()
        if data.segmentations != DataConfig.model_fields["segmentations"].default and not data.bpe_dropout:
            raise ConfigError(
                f"{origin}: data.segmentations counts what bpe_dropout draws; set data.bpe_dropout, or leave it out"
            )
        if self.training.r_drop and not any(value for key, value in model.items() if key.endswith("dropout")):
            raise ConfigError(
                f"{origin}: training.r_drop = {self.training.r_drop} compares two passes with different dropout, and "
                "the model has none; set model.dropout, or r_drop to 0"
            )

    @model_validator(mode="after")
    def _tie_only_what_is_one(self) -> Recipe:
        scratch = self.training.start_from is None  # an imported model may cut two languages into one vocabulary
        if scratch and not self.tokenizer.joint and getattr(self.model, "tie", "none") == "all":
            raise ValueError(
                "model.tie = 'all' shares one embedding between the languages, but with tokenizer.joint = false "
                "each has a vocabulary of its own; set model.tie to 'target' or 'none'"
            )
        return self

    @model_validator(mode="after")
    def _compile_only_what_has_no_steps(self) -> Recipe:
        if self.training.compile == "on" and isinstance(self.model, RecurrentConfig):
            raise ValueError(
                "training.compile = 'on' would unroll the steps of a recurrent model; set it to 'auto' or 'off'"
            )
        return self

    @model_validator(mode="after")
    def _shard_only_what_all_processes_do_alike(self) -> Recipe:
        if self.training.sharding == "none":
            return self
        if self.optimizer.kind == "adafactor":
            raise ValueError("training.sharding = 'full' cannot split Adafactor's state; set optimizer.kind to 'adam'")
        if self.training.compile == "on":
            raise ValueError(
                "training.sharding = 'full' gathers weights between kernels, which compile = 'on' would join; set "
                "training.compile to 'auto' or 'off', or sharding to 'none'"
            )
        if not isinstance(self.model, TransformerConfig):
            raise ValueError(
                f"training.sharding = 'full' splits a transformer's blocks, and model.kind is {self.model.kind!r}; set "
                "sharding to 'none'"
            )
        if self.model.layer_dropout:
            raise ValueError(
                f"model.layer_dropout = {self.model.layer_dropout} lets processes leave out different blocks, but "
                "training.sharding = 'full' gathers each block from all of them; set one to 0 or the other to 'none'"
            )
        return self

    @property
    def max_examples(self) -> int | None:
        """Most examples in a batch, the texts that a model pads to one length reckoned at that length."""
        model, data = self.model, self.data
        if not isinstance(model, ClassifierConfig) or not model.pad_to_max_length:
            return data.max_examples
        fitting = max(data.max_tokens // model.max_length, 1)
        return fitting if data.max_examples is None else min(fitting, data.max_examples)

    @classmethod
    def load(cls, path: Path, assignments: tuple[str, ...] | list[str] = ()) -> Recipe:
        """Read a recipe file, with ``section.key=value`` assignments from the command line put in."""
        recipe = cls.parse(override(read_toml(path), assignments), str(path))
        recipe._refuse_what_would_do_nothing(str(path))
        return recipe


# What may differ when a run is resumed: nothing that decides the path of the weights so far, but for their last bits.
# Neither may the metric and its beam: best scores by different ones cannot be compared.
_MAY_CHANGE = (
    "data.folder",
    "training.steps",
    "training.log_every",
    "training.device",
    "training.compile",
    "training.sharding",
    "validation.every",
    "validation.patience",
    *(f"checkpoints.{name}" for name in CheckpointConfig.model_fields),
)


def refuse_changes(old: Recipe, new: Recipe, run: Path) -> None:
    """Refuse to go on with ``old``'s run under ``new``: :class:`CheckpointError` names the keys that hinder it."""
    before = old.as_dict()
    if changed := changed_keys(before, new.as_dict()):
        raise CheckpointError(
            f"{run} was trained with another recipe: {'; '.join(changed)}. Put back what was, choose another --run, or "
            f"start over with --fresh. Only these may change on resuming: {', '.join(_may_change(_flat(before)))}"
        )


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The keys that differ between two resolved recipes and may not when a run is resumed, each with both values."""
    before, after = _flat(old), _flat(new)
    may_change = _may_change(before)
    return [
        f"{key} was {_shown(before.get(key))}, is {_shown(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in may_change
    ]


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _may_change(before: dict[str, Any]) -> list[str]:
    settings = {key.removeprefix("optimizer."): before[key] for key in before if key.startswith("optimizer.")}
    fixed = ("training.steps",) if depends_on_length(OptimizerConfig.parse(settings, "optimizer")) else ()
    return [key for key in _MAY_CHANGE if key not in fixed]


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Every value by its whole key; tables in a list have their number in it."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {key: value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= _flat(inner, f"{key}.{name}" if key else str(name))
    return flat
