"""The claims of the paper and of those who explain it, each one measured: ``headway experiment NAME|all``.

One experiment a file, named like the experiment; ``experiment.py`` says what one is, ``drawing.py`` how figures look,
``report.py`` how they become a page.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.experiments.experiment import Experiment

__all__ = ["NAMES", "load_experiment"]

NAMES = (
    "attention-numbers",
    "scaling",
    "linear-shift",
    "position-picture",
    "attention-scores",
    "heads",
    "layer-costs",
    "sentence-length",
    "positions",
    "label-smoothing",
    "no-peeking",
    "step-by-step",
    "warmup-depth",
    "what-heads-see",
)
"""In the order of the report."""


_OLD_NAMES = {"compatibility": "attention-scores"}


def load_experiment(name: str) -> Experiment:
    """The experiment of that name; :class:`ConfigError` where there is none."""
    from headway.config import nearest  # here, so that the names alone cost nothing
    from headway.errors import ConfigError

    if name in _OLD_NAMES:
        warnings.warn(
            f"the experiment {name!r} is now called {_OLD_NAMES[name]!r}; the old name will be removed in the next "
            "minor version",
            DeprecationWarning,
            stacklevel=2,
        )
        name = _OLD_NAMES[name]
    if name not in NAMES:
        raise ConfigError(f"no experiment {name!r}; {nearest(name, [*NAMES, 'all'])}")
    experiment: Experiment = import_module(f"{__name__}.{name.replace('-', '_')}").EXPERIMENT
    return experiment
