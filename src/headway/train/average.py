"""Checkpoint averaging after the fact (Vaswani et al. 2017, section 6.1: the last 5, for the big models 20)."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import load_bundle, load_weights
from headway.errors import CheckpointError
from headway.train.state import average_weights, counted_checkpoints

__all__ = ["average"]


def average(run: Path, last: int, output: Path) -> int:
    """Write the mean of the ``last`` newest checkpoints of ``run`` as a model folder, and return how many there
    were."""
    newest = counted_checkpoints(run / "checkpoints")[:last]
    if not newest:
        raise CheckpointError(f"{run}: no checkpoints; expected a run folder of `headway train`")
    template = next((folder for folder in (run / "best", run / "average") if (folder / "config.json").is_file()), None)
    if template is None:
        raise CheckpointError(
            f"{run}: no model folder beside the checkpoints yet; let training reach its first validation"
        )
    bundle = load_bundle(template)
    load_weights(bundle.model, average_weights(newest), newest[0])
    steps = ", ".join(path.name for path in newest)
    card = (template / "README.md").read_text(encoding="utf-8")
    bundle.save(output, f"{card}\nWeights: the mean of {steps}; the scores above are those of `{template.name}`.\n")
    return len(newest)
