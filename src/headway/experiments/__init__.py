"""Experiments that measure the claims of the paper and of its explainers: ``headway experiment NAME|all``.

Each experiment is one file, named after the experiment. ``experiment.py`` defines and runs experiments, ``figures.py``
gives figures a common style, and ``report.py`` writes the HTML report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.experiments.experiment import Experiment

__all__ = ["NAMES", "load_experiment"]

EXPERIMENT_NAMES = (
    "attention-numbers",
    "scaling",
    "linear-shift",
    "position-picture",
    "attention-scores",
    "heads",
    "layer-costs",
    "restricted-attention",
    "sentence-length",
    "positions",
    "label-smoothing",
    "no-peeking",
    "step-by-step",
    "warmup-depth",
    "what-heads-see",
    "recurrent-lm",
    "pretraining",
    "scaling-laws",
)
"""The names of all experiments, in the order of the report."""


def load_experiment(name: str) -> Experiment:
    """Return the experiment ``name``, or raise :class:`ConfigError` if there is none."""
    from headway.config import spelling_hint  # imported here so that importing NAMES stays fast
    from headway.errors import ConfigError

    if name not in EXPERIMENT_NAMES:
        raise ConfigError(f"no experiment {name!r}; {spelling_hint(name, [*EXPERIMENT_NAMES, 'all'])}")
    experiment: Experiment = import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT
    return experiment
