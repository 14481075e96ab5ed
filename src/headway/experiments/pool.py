"""The pool: translation models in the paper's form, each of which differs from one baseline in one choice.

The baseline is the recipe ``multi30k-de-en-fast`` (2 + 2 layers, d_model 128, 1.4 million weights) with the paper's
sinusoids, post-norm, tied embeddings, ReLU and smoothing of 0.1, dropout of 0.2, and 4,600 steps, the first 500 of
which are warm-up. Every claim about quality compares variants of this pool, so one set of baseline runs serves all.

A *run* is a variant and a seed. Seeds from 1 on are for verdicts. Seed 0 is for choosing: where depth, norm, score,
batch or optimizer change, three learning rates are tried with seed 0, and the one with the lowest loss of the
development set is used for all other seeds. No verdict uses seed 0 or the development set.

The order of :data:`VARIANTS` is the order in which runs are taken. Only declarations are here; :mod:`pool_runs` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Sections = Mapping[str, Mapping[str, Any]]
"""Keys of a recipe, by section."""

SMALL_CORPUS_PAIRS = 5000  # pairs of the variants that overfit

BASELINE: Sections = {
    "task": {"source_language": "de", "target_language": "en"},
    "data": {"max_tokens": 2048, "normalize": False},
    "tokenizer": {"vocab_size": 4000},
    "model": {"preset": "tiny", "positions": "sinusoidal", "dropout": 0.2},
    "optimizer": {"schedule": "linear", "learning_rate": 5e-3, "warmup_steps": 500},
    "training": {"steps": 4600, "label_smoothing": 0.1, "device": "cpu", "compile": "off", "log_every": 100},
    "validation": {"metric": "loss", "every": 1150},
    "checkpoints": {"every": 100, "keep": 5, "average": 5},
}


@dataclass(frozen=True)
class Variant:
    """A change of the baseline.

    Attributes:
        name: The name in files and tables.
        changes: Keys of the recipe that differ from the baseline's, by section.
        seeds: Number of seeds for verdicts, counted from 1.
        rates: Learning rates to choose from with seed 0. Empty: the baseline's rate.
        pairs: Number of sentence pairs to train on. None means all.
    """

    name: str
    changes: Sections = field(default_factory=dict)
    seeds: int = 4
    rates: tuple[float, ...] = ()
    pairs: int | None = None


@dataclass(frozen=True)
class PoolRun:
    """A training run of the pool.

    Attributes:
        variant: What is trained.
        seed: The random seed. 0 is for choosing a learning rate.
        rate: The learning rate that is tried. None: the variant's only or chosen rate.
    """

    variant: Variant
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        """The name of the run's files, such as pre-norm-seed2 or pre-norm-rate0.005-seed0."""
        return f"{self.variant.name}{'' if self.rate is None else f'-rate{self.rate:g}'}-seed{self.seed}"


def model(**keys: Any) -> Sections:
    """Return changes of the model."""
    return {"model": keys}


_RATES = (2.5e-3, 5e-3, 1e-2)
_LOW_RATES = (1e-3, 2.5e-3, 5e-3)  # for models that are known to diverge at the baseline's rate
_HALF: dict[str, dict[str, Any]] = {
    "training": {"steps": 2300},
    "optimizer": {"warmup_steps": 300},
    "validation": {"every": 575},
}
_SHORT: dict[str, dict[str, Any]] = {
    "training": {"steps": 1500},
    "optimizer": {"warmup_steps": 200},
    "validation": {"every": 375},
}


def _half(name: str, **keys: Any) -> Variant:
    return Variant(f"{name}-2300-steps", {**_HALF, "model": keys})


def _overfitting(dropout: float, smoothing: float, prior: str = "uniform") -> Variant:
    name = f"small-corpus-dropout{dropout:g}-smoothing{smoothing:g}{'' if prior == 'uniform' else f'-{prior}'}"
    training = {**_SHORT["training"], "label_smoothing": smoothing, "label_smoothing_prior": prior}
    changes = {**_SHORT, "training": training, "model": {"dropout": dropout}}
    return Variant(name, changes, 12, pairs=SMALL_CORPUS_PAIRS)


def _batch(max_tokens: int) -> Variant:
    """Return a variant with other batches that reads as many tokens."""
    steps, warmup = (value * 2048 // max_tokens for value in (4600, 500))
    changes: dict[str, dict[str, Any]] = {"data": {"max_tokens": max_tokens}, "training": {"steps": steps}}
    changes |= {"optimizer": {"warmup_steps": warmup}, "validation": {"every": steps // 4}}
    return Variant(f"batch-{max_tokens}", changes, 3, _RATES)


VARIANTS = (
    Variant("baseline", seeds=8),
    Variant("learned-positions", model(positions="learned", max_length=512), 8),
    Variant("baseline-tuned", seeds=8, rates=_RATES),
    Variant("no-positions", model(positions="none"), 3),
    Variant("1-head", model(num_heads=1)),
    Variant("16-heads", model(num_heads=16)),
    Variant("half-d_k", model(d_key=16)),
    Variant("half-d_ff", model(d_ff=256)),
    Variant("1+1-layers", model(encoder_layers=1, decoder_layers=1), rates=_RATES),
    Variant("3+3-layers", model(encoder_layers=3, decoder_layers=3), rates=_RATES),
    Variant("pre-norm", model(norm="pre"), rates=_RATES),
    Variant("rotary", model(positions="rotary")),
    Variant("untied", model(tie="none")),
    Variant("no-embedding-scale", model(scale_embedding=False)),
    Variant("no-dropout", model(dropout=0.0)),
    Variant("window-4", model(encoder_window=4, decoder_window=4)),
    Variant("additive", model(score="additive"), rates=_RATES),
    Variant("cosine", model(score="cosine"), rates=_RATES),
    Variant("hidden-projections", model(qk_projection="hidden"), rates=_RATES),
    Variant("paper-schedule", {"optimizer": {"schedule": "paper"}}, rates=(0.5, 1.0, 2.0)),
    Variant("no-norm", model(norm="none"), rates=_LOW_RATES),
    Variant("no-residuals", model(residual=False), rates=_LOW_RATES),
    Variant("words", {"tokenizer": {"kind": "words", "vocab_size": 4000}}),
    *(_overfitting(dropout, smoothing) for dropout in (0.0, 0.2) for smoothing in (0.0, 0.1)),
    *(_overfitting(dropout, 0.1, "unigram") for dropout in (0.0, 0.2)),
    _half("baseline"),
    _half("learned-positions", positions="learned", max_length=512),
    _half("1-head", num_heads=1),
    _half("no-dropout", dropout=0.0),
    _half("rotary", positions="rotary"),
    Variant("6+1-layers-pre-norm", model(encoder_layers=6, decoder_layers=1, norm="pre"), 3, _RATES),
    Variant("width-256", model(d_model=256), 3, _LOW_RATES),
    Variant("vocabulary-1000", {"tokenizer": {"vocab_size": 1000}}, 3),
    Variant("vocabulary-8000", {"tokenizer": {"vocab_size": 8000}}, 3),
    _batch(1024),
    _batch(4096),
    Variant("float32", {"training": {"precision": "float32"}}, 3),
)
"""All variants, in the order in which their runs are taken."""


def all_runs() -> list[PoolRun]:
    """Return all runs in the order in which they are taken; runs for choosing come before those that they decide."""
    runs = list[PoolRun]()
    for variant in VARIANTS:
        runs += [PoolRun(variant, 0, rate) for rate in variant.rates]
        runs += [PoolRun(variant, seed) for seed in range(1, variant.seeds + 1)]
    return runs


def recipe_sections(variant: Variant, seed: int, rate: float | None) -> dict[str, dict[str, Any]]:
    """Return the recipe of a run, without the folder and the files of its data."""
    optimizer = {} if rate is None else {"learning_rate": rate}
    sections: dict[str, dict[str, Any]] = {}
    parts: tuple[Sections, ...] = (BASELINE, variant.changes, {"training": {"seed": seed}, "optimizer": optimizer})
    for part in parts:
        for name, keys in part.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections
