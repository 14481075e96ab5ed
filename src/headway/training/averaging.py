"""Averages of weights: a moving average during training, and the mean of checkpoints afterwards.

The moving average follows the weights after each step s:

    average <- d average + (1 - d) weight        with d = min(decay, (1 + s) / (10 + s))

The average of the iterates is less noisy than the last iterate (Polyak and Juditsky 1992). The weight of old iterates
decreases exponentially, because early iterates are poor. The decay starts low so that the random initial weights are
soon forgotten, as in TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``. The decay depends only on the
step, so it does not have to be saved.

Averaging the last checkpoints follows Vaswani et al. 2017, section 6.1: the last 5, or the last 20 for big models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headway.bundle import load_bundle, require_float_weights
from headway.diagrams.model_card import DRAWING_FILE
from headway.errors import CheckpointError
from headway.storage import atomic_write_text
from headway.torch_internals import foreach_lerp
from headway.training.snapshot import average_weights, averageable_checkpoints
from headway.weights import load_weights, named_weights


class MovingAverage:
    """The exponential moving average of a model's weights. It is initialized with a copy of the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._model = model
        self._weights = [parameter.detach() for parameter in model.parameters()]
        self._averages = [weight.clone() for weight in self._weights]

    @torch.no_grad()
    def update(self, step: int, step_taken: Bool[Tensor, ""]) -> None:
        """Update the average after ``step``, counted from 1, if the step was taken.

        ``step_taken`` is a tensor on the weights' device, so that the host does not wait for its value.
        """
        approach = step_taken * (1 - min(self.decay, (1 + step) / (10 + step)))
        foreach_lerp(self._averages, self._weights, approach)

    @contextmanager
    def swap_into_model(self) -> Iterator[None]:
        """Replace the model's weights with their averages, and restore the weights on exit."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # Exchange values, not tensors: compiled kernels depend on the tensors' addresses.
        for weight, average in zip(self._weights, self._averages, strict=True):
            current = weight.clone()
            weight.copy_(average)
            average.copy_(current)

    def named_weights(self) -> dict[str, Tensor]:
        """Return a copy of the averaged weights, keyed by the public names of the model's weights."""
        with self.swap_into_model():
            return {name: tensor.clone() for name, tensor in named_weights(self._model).items()}

    def load(self, weights: dict[str, Tensor], origin: Path) -> None:
        """Load averaged weights in the format that :meth:`named_weights` returns.

        Raises:
            BundleError: The weights do not fit the model. The message begins with ``origin``.
        """
        with self.swap_into_model():
            load_weights(self._model, weights, origin)


def average_checkpoints(run: Path, max_checkpoints: int, output: Path) -> int:
    """Average the newest checkpoints of ``run``, and write the mean as a model folder.

    Returns the number of averaged checkpoints, which is less than ``max_checkpoints`` if the run has fewer.
    """
    newest = averageable_checkpoints(run / "checkpoints")[:max_checkpoints]
    if not newest:
        raise CheckpointError(f"{run}: no checkpoints; expected a run folder created by `headway train`")
    template = next((folder for folder in (run / "best", run / "average") if (folder / "config.json").is_file()), None)
    if template is None:
        raise CheckpointError(
            f"{run}: no model folder next to the checkpoints yet; continue training until its first validation"
        )
    require_float_weights(template, "an average")
    bundle = load_bundle(template)
    load_weights(bundle.model, average_weights(newest), newest[0])
    steps = ", ".join(path.name for path in newest)
    card = (template / "README.md").read_text(encoding="utf-8")
    bundle.save(output, f"{card}\nWeights: the mean of {steps}; the scores above are those of `{template.name}`.\n")
    if (drawing := template / DRAWING_FILE).is_file():  # the model card shows the drawing
        atomic_write_text(output / DRAWING_FILE, drawing.read_text(encoding="utf-8"))
    return len(newest)
