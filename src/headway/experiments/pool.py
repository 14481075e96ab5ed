"""The pool: models that differ from a baseline in one choice, for all claims on the quality of trained models.

The baseline is the recipe ``multi30k-de-en-fast`` (2 + 2 layers, d_model 128, 1.4 million weights) with the paper's
sinusoids, post-norm, tied embeddings, ReLU and smoothing of 0.1, dropout of 0.2, and 4,600 steps, the first 500 of
which are warm-up. One set of baseline runs serves all claims on translation. Recurrent models are trained for as much
processor time, and classifiers of AG News have baselines of their own: the recipes ``ag-news-reference-as-written``
and ``ag-news``.

A *run* is a variant and a seed. Seeds from 1 on are for verdicts. Seed 0 is for choosing: where depth, norm, score,
batch or optimizer change, three learning rates are tried with seed 0, and the one with the lowest loss of the
development set is used for all other seeds. No verdict uses seed 0 or the development set.

The order of :data:`VARIANTS` is the order in which runs are taken: after the baseline, what decides most claims an
hour, and last what may be left out. Only declarations are here; :mod:`pool_runs` trains, :mod:`choices` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from headway.experiments.training import Changes, merge_sections

SMALL_CORPUS_PAIRS = 5000  # pairs of the variants that overfit
SECONDS_PER_STEP = 0.24  # of the baseline, on one core of an Intel Xeon with AVX-512, measured over 40 steps
TRAINING_TEXTS = 34_000  # labeled texts of AG News for training; the others of its training file are for choosing

_ON_CPU = {"device": "cpu", "compile": "off", "log_every": 100}
BASELINE: Changes = {
    "task": {"source_language": "de", "target_language": "en"},
    "data": {"max_tokens": 2048, "normalize": False},
    "tokenizer": {"vocab_size": 4000},
    "model": {"preset": "tiny", "positions": "sinusoidal", "dropout": 0.2},
    "optimizer": {"schedule": "linear", "learning_rate": 5e-3, "warmup_steps": 500},
    "training": {"steps": 4600, "label_smoothing": 0.1, **_ON_CPU},
    "validation": {"metric": "loss", "every": 1150},
    "checkpoints": {"every": 100, "keep": 5, "average": 5},
}
_RECURRENT: Changes = {
    **BASELINE,
    "model": {"kind": "recurrent", "cell": "gru", "d_model": 256, "d_embedding": 256, "dropout": 0.3},
    "optimizer": {"schedule": "linear", "learning_rate": 2e-3, "warmup_steps": 200, "clip_norm": 1.0},
}
_CLASSIFIER: Changes = {
    "task": {"kind": "classification"},
    "data": {"max_examples": 128, "max_tokens": 8192},
    "tokenizer": {"vocab_size": 16_000},
    "model": {
        "d_model": 256,
        "num_heads": 8,
        "d_ff": 512,
        "encoder_layers": 1,
        "dropout": 0.1,
        "max_length": 60,
        "norm": "none",
        "residual": False,
        "masked": False,
        "pooling": "last",
        "pad_to_max_length": True,
    },
    "optimizer": {
        "schedule": "halve_every",
        "learning_rate": 3e-4,
        "warmup_steps": 1,
        "beta2": 0.999,
        "epsilon": 1e-8,
    },
    "training": {"steps": 2660, "label_smoothing": 0.0, **_ON_CPU},  # 10 epochs
    "validation": {"metric": "loss", "every": 2660},
    "checkpoints": {"every": 266, "keep": 5, "average": 0},
}
_BEST_CLASSIFIER: Changes = {
    **_CLASSIFIER,
    "data": {"max_examples": 128, "max_tokens": 32_768, "bpe_dropout": 0.1, "segmentations": 4},
    "model": {
        "d_model": 128,
        "num_heads": 4,
        "d_ff": 256,
        "encoder_layers": 1,
        "dropout": 0.1,
        "max_length": 160,
        "embedding_dropout": 0.3,
        "word_dropout": 0.2,
        "positions": "rotary",
        "scale_embedding": False,
    },
    "optimizer": {
        "schedule": "linear",
        "learning_rate": 1e-3,
        "warmup_steps": 70,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
    },
    "training": {**_CLASSIFIER["training"], "steps": 1862},  # 7 epochs
    "validation": {"metric": "loss", "every": 1862},
}


@dataclass(frozen=True)
class Variant:
    """A change of a baseline.

    Attributes:
        name: The name in files and tables.
        changes: Keys of the recipe that differ from the baseline's, by section.
        seeds: Number of seeds for verdicts, counted from 1.
        rates: Learning rates to choose from with seed 0. Empty: the baseline's rate.
        pairs: Number of examples to train on. None means all.
        base: The baseline's recipe.
        cost: Processor time of a step, relative to that of the baseline.
        measured: What is measured with the trained models besides loss and BLEU (:mod:`model_measurements`).
        untuned: The variant whose runs are used if its rate is the best one.
    """

    name: str
    changes: Changes = field(default_factory=dict)
    seeds: int = 4
    rates: tuple[float, ...] = ()
    pairs: int | None = None
    base: Changes = field(default_factory=lambda: BASELINE)
    cost: float = 1.0
    measured: tuple[str, ...] = ("fit", "int8")
    untuned: str = ""

    @property
    def classifies(self) -> bool:
        """Whether the models are classifiers of AG News. Otherwise they translate."""
        return self.base["task"].get("kind") == "classification"

    @property
    def steps(self) -> int:
        """Number of steps of a run."""
        steps: int = recipe_sections(self, 0, None)["training"]["steps"]
        return steps


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


def model(**keys: Any) -> Changes:
    """Return changes of the model."""
    return {"model": keys}


_RATES = (2.5e-3, 5e-3, 1e-2)
_LOW_RATES = (1e-3, 2.5e-3, 5e-3)  # for models that are known to diverge at the baseline's rate
_WITH_TOKENS = ("fit", "int8", "tokens")


def _length(steps: int, warmup: int) -> dict[str, dict[str, Any]]:
    return {"training": {"steps": steps}, "optimizer": {"warmup_steps": warmup}, "validation": {"every": steps // 4}}


def _half(name: str, **keys: Any) -> Variant:
    return Variant(f"{name}-2300-steps", {**_length(2300, 300), "model": keys})


def _overfitting(dropout: float, smoothing: float, prior: str = "uniform") -> Variant:
    name = f"small-corpus-dropout{dropout:g}-smoothing{smoothing:g}{'' if prior == 'uniform' else f'-{prior}'}"
    length = _length(1500, 200)
    training = {**length["training"], "label_smoothing": smoothing, "label_smoothing_prior": prior}
    changes = {**length, "training": training, "model": {"dropout": dropout}}
    return Variant(name, changes, 12, pairs=SMALL_CORPUS_PAIRS)


def _batch(max_tokens: int) -> Variant:
    """Return a variant with other batches that reads as many tokens."""
    steps, warmup = (value * 2048 // max_tokens for value in (4600, 500))
    changes = {"data": {"max_tokens": max_tokens}, **_length(steps, warmup)}
    return Variant(f"batch-{max_tokens}", changes, 3, _RATES, cost=max_tokens / 2048)


def _recurrent(name: str, cost: float, seeds: int = 3, **keys: Any) -> Variant:
    """Return recurrent models that are trained for as much processor time as the baseline."""
    steps = round(4600 / cost)
    rates = (1e-3, 2e-3, 4e-3) if seeds > 1 else ()
    changes = {"model": keys, "training": {"steps": steps}, "validation": {"every": steps // 4}}
    measured = ("length", "int8") if keys["attention"] == "none" else ("length", "int8", "alignment")
    return Variant(f"recurrent-{name}", changes, seeds, rates, base=_RECURRENT, cost=cost, measured=measured)


def _news(name: str, changes: Changes, rates: tuple[float, ...] = (), base: Changes = _CLASSIFIER) -> Variant:
    untuned = "news-as-written" if rates and not changes else ""
    cost = 0.3 if base is _CLASSIFIER else 0.2
    return Variant(f"news-{name}", changes, 3, rates, TRAINING_TEXTS, base, cost, ("labels",), untuned)


def _deep(norm: str, warmup: int) -> Variant:
    name = f"6+6-layers-{norm}-norm{'' if warmup > 1 else '-no-warmup'}"
    changes = {**_length(2300, warmup), **model(encoder_layers=6, decoder_layers=6, norm=norm)}
    return Variant(name, changes, 3, _LOW_RATES, cost=2.7)


_NEWS_RATES = (1e-4, 3e-4, 1e-3)
_WITH_NORM = {"norm": "pre", "residual": True}
_WITH_MASK = {**_WITH_NORM, "masked": True, "pooling": "mean", "pad_to_max_length": False}
_CHANGED = "changed_transformer"  # of changed_transformer.py

VARIANTS = (
    Variant("baseline", seeds=8, measured=(*_WITH_TOKENS, "length", "heads", "alignment", "beams", "average")),
    _news("as-written", {}),
    _news("thirds-of-an-epoch", {"optimizer": {"halve_every": 89}}),
    _news("as-written-smoothing0.1", {"training": {"label_smoothing": 0.1}}),
    _news("best", {}, base=_BEST_CLASSIFIER),
    _news("best-smoothing0.1", {"training": {"label_smoothing": 0.1}}, base=_BEST_CLASSIFIER),
    _news("as-written-tuned", {}, _NEWS_RATES),
    _news("residual", model(residual=True), _NEWS_RATES),
    _news("norm", model(**_WITH_NORM), _NEWS_RATES),
    _news("mask", model(**_WITH_MASK), _NEWS_RATES),
    Variant("no-positions", model(positions="none"), 3),
    Variant("1-head", model(num_heads=1)),
    Variant("16-heads", model(num_heads=16)),
    Variant("half-d_k", model(d_key=16)),
    Variant("half-d_ff", model(d_ff=256)),
    Variant("rotary", model(positions="rotary")),
    Variant("untied", model(tie="none")),
    Variant("no-embedding-scale", model(scale_embedding=False)),
    Variant("no-dropout", model(dropout=0.0)),
    Variant("window-4", model(encoder_window=4, decoder_window=4)),
    Variant("words", {"tokenizer": {"kind": "words", "vocab_size": 4000}}),
    _half("baseline"),
    _half("learned-positions", positions="learned", max_length=512),
    _half("1-head", num_heads=1),
    _half("no-dropout", dropout=0.0),
    _half("rotary", positions="rotary"),
    Variant("learned-positions", model(positions="learned", max_length=512), 8),
    *(_overfitting(dropout, smoothing) for dropout in (0.0, 0.2) for smoothing in (0.0, 0.1)),
    *(_overfitting(dropout, 0.1, "unigram") for dropout in (0.0, 0.2)),
    Variant("baseline-tuned", seeds=8, rates=_RATES, measured=_WITH_TOKENS, untuned="baseline"),
    Variant("pre-norm", model(norm="pre"), rates=_RATES),
    Variant("1+1-layers", model(encoder_layers=1, decoder_layers=1), rates=_RATES, cost=0.6),
    Variant("3+3-layers", model(encoder_layers=3, decoder_layers=3), rates=_RATES, cost=1.4),
    Variant("paper-schedule", {"optimizer": {"schedule": "paper"}}, rates=(0.5, 1.0, 2.0)),
    Variant("no-norm", model(norm="none"), rates=_LOW_RATES, measured=_WITH_TOKENS),
    Variant("no-residuals", model(residual=False), rates=_LOW_RATES, measured=_WITH_TOKENS),
    Variant("cosine", model(score="cosine"), rates=_RATES),
    Variant("hidden-projections", model(qk_projection="hidden"), rates=_RATES),
    Variant("unscaled", model(kind=_CHANGED, change="smaller_queries_and_keys", score="dot"), rates=_LOW_RATES),
    Variant("feed-forward-over-positions", model(kind=_CHANGED, change="feed_forward_over_positions"), rates=_RATES),
    Variant("additive", model(score="additive"), rates=_RATES, cost=1.8),
    _recurrent("final-state", 2.0, attention="none"),
    _recurrent("additive", 2.0, attention="bahdanau"),
    _recurrent("mean-state", 2.0, attention="none", summary="mean"),
    _recurrent("dot", 2.0, attention="bahdanau", score="dot"),
    _recurrent("luong", 2.0, 1, attention="luong", score="additive"),
    _recurrent("input-feeding", 2.0, 1, attention="luong", score="additive", input_feeding=True),
    _recurrent("2-layers", 2.0, 1, attention="bahdanau", encoder_layers=2, decoder_layers=2),
    _recurrent("4-layers", 2.0, 1, attention="bahdanau", encoder_layers=4, decoder_layers=4),
    *(_deep(norm, warmup) for norm in ("pre", "post") for warmup in (300, 1)),
    Variant("feed-forward-first", model(kind=_CHANGED, change="feed_forward_first"), 3),
    Variant("6+1-layers-pre-norm", model(encoder_layers=6, decoder_layers=1, norm="pre"), 3, _RATES, cost=1.5),
    Variant("width-256", model(d_model=256), 3, _LOW_RATES, cost=2.2),
    Variant("vocabulary-1000", {"tokenizer": {"vocab_size": 1000}}, 3),
    Variant("vocabulary-8000", {"tokenizer": {"vocab_size": 8000}}, 3),
    _batch(1024),
    _batch(4096),
    Variant("float32", {"training": {"precision": "float32"}}, 3),
    Variant("ema", {"training": {"ema": 0.999}}, 3, measured=("average",)),
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
    return merge_sections(variant.base, variant.changes, {"training": {"seed": seed}, "optimizer": optimizer})


def speeds_of(records: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Return the mean processor time of a step of each variant, given those of runs, in seconds."""
    times = dict[str, list[float]]()
    for name, seconds in records:
        if seconds:
            times.setdefault(name, []).append(seconds)
    return {name: fmean(values) for name, values in times.items()}


def core_hours(run: PoolRun, speeds: Mapping[str, float]) -> float:
    """Return how many hours of a core a run takes, from measured times of a step (:func:`speeds_of`)."""
    variant = run.variant
    seconds = speeds.get(variant.name) or variant.cost * speeds.get("baseline", SECONDS_PER_STEP)
    return seconds * variant.steps / 3600
