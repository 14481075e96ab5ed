"""The training state: everything that changes during training."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headway.errors import CheckpointError
from headway.models.registry import blocks_of
from headway.training.averaging import MovingAverage
from headway.training.checkpoints import Checkpoints
from headway.training.distributed import World
from headway.training.optim import make_optimizer
from headway.training.recipe import Recipe
from headway.training.snapshot import Progress, Snapshot, load_snapshot, optimizer_moments, prefixed_tensors
from headway.training.stream import StepBatches
from headway.training.task import Objective
from headway.training.validation import SelectionKey
from headway.weights import named_weights


class TrainingState:
    """Weights, optimizer moments, moving average, carried state, the position in the data, and sums for the metrics.

    The sums stay on the device until they are reported, so that no step waits for them. When a checkpoint is saved,
    they are copied to ``progress``. In distributed training, each process sums only the loss of its own micro-batches.
    :meth:`pop_window_metrics` and :meth:`save` add these sums over all processes, so all processes must call them at
    the same step.
    """

    def __init__(self, objective: Objective, recipe: Recipe, run: Path, world: World, checkpoints: Checkpoints) -> None:
        self.model: nn.Module = objective.model
        self.optimizer = make_optimizer(self.model, recipe.optimizer, blocks_of(objective.model))
        self.ema = None if recipe.training.ema is None else MovingAverage(self.model, recipe.training.ema)
        self._objective = objective
        self.progress = Progress()
        self.selection: SelectionKey | None = None  # validation scores of the current weights
        self._world, self._checkpoints = world, checkpoints
        self._restore(run)
        self.saved_step = self.progress.step
        progress, loss = self.progress, self.progress.loss if world.is_main else 0.0
        # Sums since the last report (loss, targets, skipped steps), and the current number of consecutive skipped
        # steps.
        sums = [loss, progress.loss_targets, progress.skipped, progress.skipped_in_a_row]
        self._sums = torch.tensor(sums, dtype=torch.float64, device=world.device)
        self._start_window()

    def _restore(self, run: Path) -> None:
        """Load the newest checkpoint, if any."""
        newest = self._world.run_on_main_first(self._checkpoints.load_newest)
        path, snapshot = newest or (None, None)
        if self._world.any(self._world.run_on_main(lambda: path) != path):
            raise CheckpointError(
                f"{run}: ranks disagree on which checkpoint to resume from; put the run folder on a file system "
                "shared by all ranks"
            )
        if path is None or snapshot is None:
            return
        load_snapshot(snapshot, path, self.model, self.optimizer)
        if self.ema is not None and (average := snapshot.tensors_of_kind("ema")):
            self.ema.load(average, path)
        carried = snapshot.tensors_of_kind("carried")
        self._objective.carried_state = {name: tensor.to(self._world.device) for name, tensor in carried.items()}
        self.progress = snapshot.progress

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.progress.step

    def finish_step(self, batches: StepBatches, loss: Float[Tensor, ""], step_taken: Bool[Tensor, ""]) -> None:
        """Record a step: its batches, its summed loss, and whether the weights were updated (``step_taken``)."""
        progress, sums = self.progress, self._sums
        progress.step += 1
        progress.epoch, progress.batch = batches.next_epoch, batches.next_batch
        if self.ema is not None:
            self.ema.update(progress.step, step_taken)
        sums[0] += loss.double().where(step_taken, 0.0)
        sums[1] += step_taken * float(batches.num_target_tokens)
        sums[2] += ~step_taken
        sums[3] = (sums[3] + 1) * ~step_taken
        self._targets += batches.num_target_tokens
        self._sources += batches.num_source_tokens
        self.selection = None

    def num_consecutive_skips(self) -> int:
        """Return the current number of consecutive skipped steps. This makes the host wait for the device."""
        return int(self._sums[3])

    def pop_window_metrics(self) -> dict[str, float]:
        """Return the mean loss per target, tokens per second and skipped steps since the last call, and reset them."""
        self._update_progress()
        progress, seconds = self.progress, self.progress.elapsed_s - self._window_start_s
        record = {
            "loss": progress.loss / progress.loss_targets if progress.loss_targets else float("nan"),
            "target_tokens_per_s": self._targets / seconds,
            "source_tokens_per_s": self._sources / seconds,
            "skipped_steps": progress.skipped,
        }
        self._sums[:3] = 0
        progress.loss, progress.loss_targets, progress.skipped = 0.0, 0, 0
        self._start_window()
        return record

    def save(self, *, is_regular: bool, counts_as_newest: bool = True) -> None:
        """Save a checkpoint. See :class:`headway.training.snapshot.Snapshot` for the arguments."""
        self._update_progress()
        self.saved_step = self.step
        if self._world.is_main:
            weights, moments = named_weights(self.model), optimizer_moments(self.model, self.optimizer)
            ema = {} if self.ema is None else self.ema.named_weights()
            carried = self._objective.carried_state
            tensors = prefixed_tensors(weights=weights, moments=moments, ema=ema, carried=carried)
            score, negative_loss = self.selection or (None, None)
            dev_loss = None if negative_loss is None or math.isinf(negative_loss) else -negative_loss
            self._checkpoints.save(Snapshot(self.progress, tensors, score, dev_loss, is_regular, counts_as_newest))

    def _update_progress(self) -> None:
        progress, (_, targets, skipped, in_a_row) = self.progress, self._sums.tolist()
        progress.loss, progress.loss_targets = float(self._world.sum(self._sums[0])), int(targets)
        progress.skipped, progress.skipped_in_a_row = int(skipped), int(in_a_row)

    def _start_window(self) -> None:
        self._window_start_s = self.progress.elapsed_s
        self._sources = self._targets = 0
