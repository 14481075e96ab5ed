"""The pool: models that differ from a baseline in one choice, for all claims on the quality of trained models.

``pool.toml`` declares the variants and their baselines. One set of baseline runs serves all claims on translation.
Recurrent models are trained for as much processor time, and classifiers of AG News have baselines of their own.

A *run* is a variant and a seed. Seeds from 1 on are for verdicts. Seed 0 is for choosing: where depth, norm, score,
batch or optimizer change, three learning rates are tried with seed 0, and the one with the lowest loss of the
development set is used for all other seeds. No verdict uses seed 0 or the development set.

:mod:`pool_runs` trains, :mod:`choices` judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from headway.experiments.experiment import read_declarations

Changes = Mapping[str, Mapping[str, Any]]
"""Keys of a recipe, by section."""

SECONDS_PER_STEP = 0.24  # of the baseline, on one core of an Intel Xeon with AVX-512, measured over 40 steps


@dataclass(frozen=True)
class Variant:
    """A change of a baseline.

    Attributes:
        name: The name in files and tables.
        base: The baseline's recipe.
        changes: Keys of the recipe that differ from it, by section.
        seeds: Number of seeds for verdicts, counted from 1.
        rates: Learning rates to choose from with seed 0. Empty: the baseline's rate.
        pairs: Number of examples to train on. None means all.
        cost: Processor time of a step, relative to that of the baseline.
        measured: What is measured with the trained models besides loss and BLEU (:mod:`model_measurements`).
        untuned: The variant whose runs are used if its rate is the best one.
    """

    name: str
    base: Changes
    changes: Changes = field(default_factory=dict)
    seeds: int = 3
    rates: Sequence[float] = ()
    pairs: int | None = None
    cost: float = 1.0
    measured: Sequence[str] = ("fit", "int8")
    untuned: str = ""

    @property
    def classifies(self) -> bool:
        """Whether the models are classifiers of AG News. Otherwise they translate."""
        return self.base["task"].get("kind") == "classification"

    @property
    def steps(self) -> int:
        """Number of steps of a run."""
        return int(recipe_sections(self, 0, None)["training"]["steps"])


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


def _variant(base: str = "baseline", **keys: Any) -> Variant:
    sections = read_declarations("pool.toml")["bases"][base]
    changes = {key: value for key, value in keys.items() if key in sections}
    return Variant(base=sections, changes=changes, **{key: keys[key] for key in keys if key not in sections})


VARIANTS = tuple(_variant(**table) for table in read_declarations("pool.toml")["variants"])
"""All variants, in the order in which their runs are taken."""


def all_runs() -> list[PoolRun]:
    """Return all runs in the order in which they are taken; runs for choosing come before those that they decide."""
    runs = list[PoolRun]()
    for variant in VARIANTS:
        runs += [PoolRun(variant, 0, rate) for rate in variant.rates]
        runs += [PoolRun(variant, seed) for seed in range(1, variant.seeds + 1)]
    return runs


def merge_sections(*parts: Changes) -> dict[str, dict[str, Any]]:
    """Merge the sections of recipes. Keys of later parts replace those of earlier parts."""
    sections: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, keys in part.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


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
