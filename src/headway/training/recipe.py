"""The recipe: the complete configuration of a training run, in sections.

:class:`Recipe` contains the sections and checks shared by all tasks. Each task has a subclass with additional defaults
and checks; :func:`headway.tasks.parse_recipe` selects it by ``task.kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from headway.bundle import TaskConfig
from headway.config import Config, Inert, flatten_items
from headway.data.bad_lines import OnError
from headway.data.draws import ORDER_VERSION
from headway.data.readers import Corpus
from headway.data.store import FilterConfig
from headway.errors import CheckpointError, ConfigError
from headway.kinds import Capability
from headway.models.registry import ModelConfig, architecture_of, architectures_with_capability
from headway.models.transformer import TransformerConfig
from headway.text.normalization import normalize
from headway.text.tokenizer import TokenizerConfig
from headway.training.optim import OptimizerConfig, depends_on_total_steps


class DataConfig(Config):
    """The corpora for training and validation, and the composition of batches."""

    folder: str = Field(".", description="Folder of all corpus files, relative to the working directory.")
    train: tuple[Corpus, ...] = Field(min_length=1, description="The training corpora.")
    dev: Corpus | None = Field(None, description="The development set. Without it, there is no validation.")
    filter: FilterConfig = Field(default_factory=FilterConfig, description="Length limits for training examples.")
    on_error: OnError = Field(
        "refuse",
        description="Lines that are not text (they contain NUL, bytes that are not UTF-8, or a carriage return) or "
        "not an example (a missing column or field). refuse: read all lines, then stop with a list of the invalid "
        "lines. skip: skip the example on both sides, and count it.",
    )
    max_tokens: int = Field(
        4096, ge=1, description="Batch size in tokens: number of rows x length of the longer side, including padding."
    )
    max_examples: int | None = Field(None, ge=1, description="Maximum examples per batch. None means no limit.")
    pool_size: int = Field(
        32768, ge=1, description="Number of examples sorted together by length. Larger pools need less padding."
    )
    temperature: float | None = Field(
        None,
        ge=1,
        description="Temperature for mixing corpora. An epoch is as long as all corpora together, and the share of a "
        "corpus is proportional to (weight x pairs)^(1/temperature). 1 keeps the proportions; higher values favor "
        "small corpora. None means that only the weights matter.",
    )
    normalize: Annotated[bool, Inert(False)] = Field(
        True,
        description="Whether texts that look the same are normalized to the same characters, in training and in use: "
        "accents are composed (NFC), invisible characters are removed, and, except for language models, white "
        "space at the ends is stripped and consecutive spaces are merged.",
    )
    bpe_dropout: float = Field(0.0, ge=0, lt=1, description="Probability of skipping a BPE merge in training text.")
    segmentations: int = Field(
        8, ge=1, description="With bpe_dropout: number of segmentations stored per text. Epochs alternate between them."
    )
    order_version: Annotated[int, Inert(1)] = Field(
        ORDER_VERSION,
        ge=1,
        le=ORDER_VERSION,
        description="Version of the algorithm for the random order of the data. A run keeps its version. Version 1 "
        "depends on the NumPy version.",
    )

    @model_validator(mode="after")
    def _check_languages(self) -> DataConfig:
        """Check that all or none of the corpora have a target language: a model gets a language tag always or never."""
        known = {corpus.target_language for corpus in self.train}
        if None in known and len(known) > 1:
            raise ValueError("train: some corpora have a target_language and others do not; set it for all or for none")
        if self.dev and self.dev.source_language not in {corpus.source_language for corpus in self.train}:
            raise ValueError(
                f"dev: source_language is {self.dev.source_language or 'not set'}, but no corpus in train has this "
                "language"
            )
        if self.dev and self.dev.target_language not in known:
            languages = ", ".join(sorted(language for language in known if language)) or "none"
            raise ValueError(
                f"dev: target_language is {self.dev.target_language or 'not set'}, but the corpora in train have: "
                f"{languages}"
            )
        return self


class TrainingConfig(Config):
    """Configuration of the training loop: length, loss, initial weights and device."""

    steps: int = Field(100_000, ge=1, description="Number of optimizer steps.")
    seed: int = Field(1, ge=0, description="Random seed for initial weights, data order and dropout.")
    accumulate: int = Field(1, ge=1, description="Batches per optimizer step (gradient accumulation).")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Probability mass moved from the target to all tokens.")
    label_smoothing_prior: Literal["uniform", "unigram"] = Field(
        "uniform",
        description="How this probability mass is distributed: uniformly, or in proportion to the frequency of each "
        "token (for a classifier: each label) in the training data.",
    )
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="Classification: class weights in the loss. balanced: equal total weight of all classes."
    )
    r_drop: float = Field(
        0.0,
        ge=0,
        description="R-Drop: weight of the divergence between two forward passes. 0 disables the second pass.",
    )
    ema: float | None = Field(
        None, gt=0, lt=1, description="Decay rate of a moving average of the weights. None means no average."
    )
    start_from: str | None = Field(
        None,
        description="Fine-tuning: model whose weights and tokenizers training starts from: a model folder, trained or "
        "imported, or hf:NAME (a model on the Hugging Face Hub). Keys missing from [model], tokenizer.joint and "
        "the languages of [task] are taken from this model; keys set in [model] and [tokenizer] must match it, "
        "except dropout and settings used only to learn a vocabulary. A classifier may start from a language "
        "model, and a translation model from a masked language model, which becomes its encoder. None means "
        "training from random weights.",
    )
    start_decoder_from: str | None = Field(
        None,
        description="If start_from is a masked language model: folder of a decoder-only language model whose weights "
        "and tokenizer the decoder starts from. The weights of cross-attention are random. The blocks of both "
        "models must have the same options.",
    )
    freeze: tuple[str, ...] = Field(
        (), description="Name patterns of weights that are not trained; * matches anything, as in 'encoder.*'."
    )
    unfreeze_every: int | None = Field(
        None,
        ge=1,
        description="Fine-tuning: number of steps after which one more block is unfrozen. At first only the weights "
        "above the blocks are trained, then also the last block, and finally the embeddings. None trains all "
        "weights from the start.",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="Whether to use torch.compile. auto: only on a GPU."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of matrix products. auto: bfloat16 if it is faster on this hardware, else float32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device for training. auto: a GPU if there is one."
    )
    log_every: int = Field(50, ge=1, description="Number of steps between lines in metrics.jsonl.")

    @model_validator(mode="before")
    @classmethod
    def _drop_sharding(cls, data: Any) -> Any:
        """Accept ``sharding = "none"``, which resolved recipes of older versions contain, and reject "full"."""
        if not isinstance(data, dict) or "sharding" not in data:
            return data
        if data["sharding"] != "none":
            raise ValueError(
                f"sharding = {data['sharding']!r}: version 0.1.0 removed sharding (FSDP2). Remove the key: each "
                "process keeps the whole model, which must fit on one device. To save memory, lower data.max_tokens "
                "and raise accumulate, or set optimizer.kind = 'adafactor'. For larger models, write a program that "
                "applies PyTorch's fully_shard to headway.models"
            )
        return {key: value for key, value in data.items() if key != "sharding"}


class ValidationConfig(Config):
    """Configuration of validation on the development set and of the selection of the best model."""

    every: int = Field(1000, ge=1, description="Steps between validations.")
    metric: str = Field("loss", description="Score by which the best model is selected.")
    beam_size: int = Field(1, ge=1, description="Beam size of the translations on which BLEU is computed.")
    patience: int | None = Field(
        None, ge=1, description="Stop after this many validations without improvement. None disables early stopping."
    )


class CheckpointConfig(Config):
    """Configuration of checkpoints: their interval, and how many are kept and averaged."""

    every: int = Field(1000, ge=1, description="Steps between checkpoints.")
    keep: int = Field(5, ge=1, description="Number of newest checkpoints to keep.")
    keep_best: int = Field(0, ge=0, description="Number of best-scoring checkpoints to keep in addition to the newest.")
    average: int = Field(
        5,
        ge=0,
        description="Number of newest checkpoints averaged into average/ at the end. 0 and 1 disable averaging.",
    )

    @model_validator(mode="after")
    def _check_average(self) -> CheckpointConfig:
        if self.average > self.keep:
            raise ValueError(
                f"average = {self.average} exceeds keep = {self.keep}, the number of checkpoints that are kept: raise "
                "keep"
            )
        return self


class Recipe(Config):
    """The complete configuration of a training run."""

    capability: ClassVar[Capability] = "translates"  # what the task's models can do with a text
    default_model: ClassVar[str] = "transformer"

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
    def _fill_in_model_kind(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("model", {}), dict):
            return data
        return {**data, "model": {"kind": cls.default_model, **data.get("model", {})}}

    @model_validator(mode="after")
    def _check_architecture(self) -> Recipe:
        architecture, training = architecture_of(self.model), self.training
        if architecture.capability != self.capability:
            raise ValueError(
                f"model.kind = {self.model.kind!r} does not fit task.kind = {self.task.kind!r}; expected "
                f"{' or '.join(architectures_with_capability(self.capability))}"
            )
        if training.start_decoder_from is not None and (training.start_from is None or self.capability != "translates"):
            raise ValueError(
                "training.start_decoder_from has no effect unless training.start_from is a masked language model that "
                "becomes the encoder of a translation model; remove the key"
            )
        if training.compile == "on" and not architecture.is_compilable:
            raise ValueError(
                f"training.compile = 'on' would unroll the time steps of a {self.model.kind} model; set it to 'auto' "
                "or 'off'"
            )
        return self

    @staticmethod
    def refuse_options(given: Mapping[str, bool], reason: str) -> None:
        """Raise ValueError with ``reason`` for the first option that is set although the task does not use it."""
        if keys := [key for key, is_given in given.items() if is_given]:
            raise ValueError(f"{keys[0]}: {reason}")

    def refuse_options_without_effect(self, origin: str) -> None:
        """Raise :class:`ConfigError` if the recipe sets options that have no effect. The message begins with
        ``origin``.

        This is called only for recipes written by users, not for the saved recipe of a run.
        """
        data, model = self.data, self.model.as_dict()
        if data.segmentations != DataConfig.model_fields["segmentations"].default and not data.bpe_dropout:
            raise ConfigError(
                f"{origin}: data.segmentations has no effect without data.bpe_dropout; set bpe_dropout, or remove "
                "data.segmentations"
            )
        if self.training.r_drop and not any(value for key, value in flatten_items(model) if key.endswith("dropout")):
            raise ConfigError(
                f"{origin}: training.r_drop = {self.training.r_drop} compares two passes with different dropout "
                "masks, but the model has no dropout; set model.dropout, or set r_drop to 0"
            )
        optimizer, tokenizer, training = self.optimizer, self.tokenizer, self.training
        for section, config, key, condition, has_effect in (
            ("optimizer", optimizer, "momentum", "kind = 'muon'", optimizer.kind == "muon"),
            *(("optimizer", optimizer, key, "kind = 'adam' or 'muon'", optimizer.kind != "adafactor")
              for key in ("beta1", "beta2", "epsilon")),
            ("optimizer", optimizer, "final_fraction", "schedule = 'linear' or 'cosine'",
             optimizer.schedule in ("linear", "cosine")),
            ("optimizer", optimizer, "halve_every", "schedule = 'halve_every'", optimizer.schedule == "halve_every"),
            ("training", training, "label_smoothing_prior", "label_smoothing > 0", training.label_smoothing > 0),
            *(("tokenizer", tokenizer, key, f"kind = {' or '.join(map(repr, kinds))}",
               tokenizer.kind in kinds or bool(self.tokenizer_source))
              for key, kinds in (("vocab_size", ("bpe", "words")), ("split_digits", ("bpe", "words")),
                                 ("min_frequency", ("bpe",)))),
        ):  # fmt: skip
            if not has_effect and getattr(config, key) != type(config).model_fields[key].default:
                raise ConfigError(f"{origin}: {section}.{key} has no effect without {condition}; remove it")

    def refuse_options_without_blocks(self) -> None:
        """Raise :class:`ConfigError` if an option needs a list of blocks, but the model does not have one."""
        used = {
            "training.unfreeze_every": self.training.unfreeze_every is not None,
            "optimizer.layer_decay": self.optimizer.layer_decay != 1,
        }
        if architecture_of(self.model).get_blocks is None and (names := [name for name in used if used[name]]):
            raise ConfigError(f"{names[0]}: a {self.model.kind} model has no list of blocks; remove the key")

    def with_resolved_options(self, begun: Recipe | None) -> Recipe:
        """Return this recipe with automatic options resolved. If the run has started, use the values of its recipe
        ``begun``.
        """
        return self

    @property
    def normalization(self) -> Callable[[str], str] | None:
        """The function that normalizes training texts, or None if they are not normalized."""
        return normalize if self.data.normalize else None

    @property
    def tokenizer_source(self) -> str | None:
        """The model folder from which tokenizers are copied. None means that tokenizers are trained."""
        return self.training.start_from

    @property
    def max_batch_examples(self) -> int | None:
        """The maximum number of examples in a batch, or None if only ``data.max_tokens`` limits the batch."""
        return self.data.max_examples

    @property
    def leaves_weights_unused(self) -> bool:
        """Whether a training pass may leave some weights unused or without a gradient."""
        return self.skips_layers or self.training.unfreeze_every is not None

    @property
    def skips_layers(self) -> bool:
        """Whether training randomly skips blocks (LayerDrop), so that a pass may leave some weights unused."""
        return self._layer_dropout > 0

    @property
    def _layer_dropout(self) -> float:
        return max(
            (value for key, value in flatten_items(self.model.as_dict()) if key.endswith("layer_dropout")), default=0.0
        )


# Keys that may change when a run resumes, because they do not affect the current weights, or only their last bits. The
# metric and its beam size must not change, because scores by different metrics cannot be compared.
_MAY_CHANGE = (
    "data.folder",
    "training.steps",
    "training.log_every",
    "training.device",
    "training.compile",
    "validation.every",
    "validation.patience",
    *(f"checkpoints.{name}" for name in CheckpointConfig.model_fields),
)


def check_resumable(old: Recipe, new: Recipe, run: Path) -> None:
    """Raise :class:`CheckpointError` if ``run``, which was started with recipe ``old``, cannot resume with ``new``.

    The message lists the keys that must not change.
    """
    if changes := changed_keys(old, new):
        raise CheckpointError(
            f"{run} was trained with a different recipe: {'; '.join(changes)}. Restore the old values, choose another "
            f"--run, or start over with --fresh. A resumed run may change only: {', '.join(_may_change(old))}"
        )


def changed_keys(old: Recipe, new: Recipe) -> list[str]:
    """Describe the keys that differ between two recipes but must not change when a run resumes."""
    before, after, may_change = flatten_options(old.as_dict()), flatten_options(new.as_dict()), _may_change(old)
    return [
        f"{key} was {format_option(before.get(key))}, is {format_option(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in may_change
    ]


def format_option(value: Any) -> str:
    """Format the value of an option for a message."""
    return "not set" if value is None else repr(value)


def _may_change(recipe: Recipe) -> list[str]:
    fixed = "training.steps" if depends_on_total_steps(recipe.optimizer) else None
    return [key for key in _MAY_CHANGE if key != fixed]


def flatten_options(value: Any, key: str = "") -> dict[str, Any]:
    """Return all nested values, keyed by full dotted keys. Tables in a list are numbered."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {key: value}
    flat: dict[str, Any] = {}
    for name, inner in value.items():
        flat |= flatten_options(inner, f"{key}.{name}" if key else str(name))
    return flat
