"""Experiments that measure the claims of the paper and of its explainers: ``headway experiment NAME|all``.

Each experiment is one file, named after the experiment. ``experiment.py`` defines and runs experiments, ``figures.py``
gives figures a common style, and ``report.py`` writes the HTML report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.experiments.experiment import Experiment

__all__ = ["EXPERIMENT_NAMES", "load_experiment"]

EXPERIMENT_NAMES = (
    "exact-checks",
    "attention-numbers",
    "scaling",
    "linear-shift",
    "position-picture",
    "no-peeking",
    "layer-costs",
    "attention-scores",
    "depth",
    "synthetic-tasks",
    "choices",
    "pretraining",
    "scaling-laws",
)
"""The names of all experiments, in the order of the report."""


def load_experiment(name: str) -> Experiment:
    """Return the experiment ``name``, or raise :class:`ConfigError` if there is none."""
    from headway.config import spelling_hint  # imported here so that importing EXPERIMENT_NAMES stays fast
    from headway.errors import ConfigError

    if name not in EXPERIMENT_NAMES:
        raise ConfigError(
            f"no experiment {name!r}; {spelling_hint(name, [*EXPERIMENT_NAMES, 'all', 'pool', 'report'])}"
        )
    experiment: Experiment = import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT
    return experiment
