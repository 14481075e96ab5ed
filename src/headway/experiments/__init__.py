"""Experiments that measure the claims of the paper and of its explainers: ``headway experiment NAME|all``.

Each experiment is one module, named after the experiment; its claims are in ``claims.toml``. ``experiment.py`` runs
experiments, ``figures.py`` gives figures a common style, and ``report.py`` writes the HTML report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.experiments.experiment import Experiment

__all__ = ["EXPERIMENT_NAMES", "load_experiment"]

EXPERIMENT_NAMES = (
    "exact-checks", "scaling", "positions", "layer-costs", "model-costs", "depth",
    "synthetic-tasks", "choices", "step-by-step", "what-heads-see", "scaling-laws",
)  # fmt: skip
"""The names of all experiments, in the order of the report."""


def load_experiment(name: str) -> Experiment:
    """Return the experiment ``name``, or raise :class:`ConfigError` if there is none.

    It is the module of this name: its docstring, ``TITLE``, ``measure``, ``judge`` and ``draw``; its claims are in
    ``claims.toml``, or in ``CLAIMS`` where their rows have another form.
    """
    from headway.config import spelling_hint  # imported here so that importing EXPERIMENT_NAMES stays fast
    from headway.errors import ConfigError
    from headway.experiments.experiment import Experiment, read_claims

    if name not in EXPERIMENT_NAMES:
        raise ConfigError(
            f"no experiment {name!r}; {spelling_hint(name, [*EXPERIMENT_NAMES, 'all', 'pool', 'report'])}"
        )
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    optional = {key.lower(): getattr(module, key) for key in ("DATA_FILES", "READS_POOL") if hasattr(module, key)}
    claims = module.CLAIMS if hasattr(module, "CLAIMS") else read_claims(name)
    steps = module.measure, module.judge, module.draw
    return Experiment(name, module.TITLE, str(module.__doc__), claims, *steps, **optional)
