"""Sums since the last record of metrics. They stay on the device until then, so that no step waits for them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.train.distributed import World
from headway.train.state import Progress
from headway.train.stream import Work

__all__ = ["Window"]


class Window:
    """Loss and tokens since the last record, and how many steps were skipped because something was not finite.

    What must survive an interruption goes on from ``progress`` and is put back by :meth:`note`, so that a record is
    the same with and without one. In a job of several processes the loss of each is a share, and :meth:`note` sums
    them: all processes call it at the same step.
    """

    def __init__(self, progress: Progress, world: World) -> None:
        self._progress, self._world = progress, world
        # loss, its targets, skipped steps in this window, skipped steps in a row up to now
        loss = progress.loss if world.is_main else 0.0
        state = [loss, progress.loss_targets, progress.skipped, progress.skipped_in_a_row]
        self._sums = torch.tensor(state, dtype=torch.float64, device=world.device)
        self._restart()

    def _restart(self) -> None:
        self._begin = self._progress.elapsed_s
        self._sources = self._targets = 0

    def add(self, loss: Float[Tensor, ""], work: Work, taken: Bool[Tensor, ""]) -> None:
        """Count a step with its summed loss; one that was not ``taken`` leaves loss and targets alone."""
        sums, targets = self._sums, float(work.num_targets)
        sums[0] += loss.double().where(taken, 0.0)
        sums[1] += taken * targets
        sums[2] += ~taken
        sums[3] = (sums[3] + 1) * ~taken
        self._targets += work.num_targets
        self._sources += work.num_sources

    @property
    def skipped_in_a_row(self) -> int:
        """Steps skipped one after the other, up to the last one; the host waits for the device."""
        return int(self._sums[3])

    def note(self) -> None:
        """Put the sums into the progress that is to be saved."""
        progress, (_, targets, skipped, in_a_row) = self._progress, self._sums.tolist()
        progress.loss, progress.loss_targets = float(self._world.sum(self._sums[0])), int(targets)
        progress.skipped, progress.skipped_in_a_row = int(skipped), int(in_a_row)

    def close(self) -> dict[str, float]:
        """Mean loss for each target token, tokens per second of training, skipped steps; begins anew."""
        self.note()
        progress, seconds = self._progress, self._progress.elapsed_s - self._begin
        record = {
            "loss": progress.loss / progress.loss_targets if progress.loss_targets else float("nan"),
            "target_tokens_per_s": self._targets / seconds,
            "source_tokens_per_s": self._sources / seconds,
            "skipped_steps": progress.skipped,
        }
        self._sums[:3] = 0
        progress.loss, progress.loss_targets, progress.skipped = 0.0, 0, 0
        self._restart()
        return record
