"""The training loop (Vaswani et al. 2017, section 5).

A step processes ``accumulate`` micro-batches. Its loss is summed over all target tokens (without padding) and divided
by their number, so that several small batches are equivalent to one large batch. Dropout is seeded by (seed, step,
micro-batch) and the order of the data by (seed, epoch). An interrupted and resumed run therefore gives the same model
as an uninterrupted run, and the trajectory does not depend on the number of processes.

:func:`train` is the loop. :class:`_Trainer` contains everything that does not change during a run, and the actions that
are not part of every step: reporting, validation, saving and averaging at the end. Everything that changes is in
:class:`TrainingState`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from headway.bundle import CHOSEN_MODEL_FILE
from headway.config import to_toml
from headway.contention import adapt_openmp_waiting
from headway.diagrams.model_card import add_drawing
from headway.engine.accelerate import accelerate, compile_blocks
from headway.errors import ConfigError, DivergenceError
from headway.hardware import autocast, cudnn_attention_disabled, return_freed_memory
from headway.interop.hub import model_folder
from headway.models.registry import architecture_of, blocks_of
from headway.storage import atomic_write_text, lock_run_folder
from headway.training.checkpoints import Checkpoints
from headway.training.distributed import World, join_world
from headway.training.environment import record_environment
from headway.training.fine_tuning import complete_recipe, freeze, load_initial_weights, recipe_of_run
from headway.training.memory import (
    BatchShape,
    available_memory,
    check_memory,
    estimate_memory,
    explain_out_of_memory,
    largest_batch_shapes,
)
from headway.training.model_card import model_card
from headway.training.muon import Muon
from headway.training.optim import clip_and_step, learning_rate, learning_rate_warning, weight_depths
from headway.training.recipe import Recipe, TrainingConfig, check_resumable
from headway.training.report import Listener, MetricsWriter, Scores, format_number
from headway.training.slowdown import SlowdownMonitor
from headway.training.snapshot import average_weights, averageable_checkpoints, checkpoint_folders
from headway.training.state import TrainingState
from headway.training.stream import BatchStream, prefetch
from headway.training.task import RunData, Task
from headway.training.validation import SelectionKey, dev_scores, selection_key, target_entropy
from headway.weights import load_weights

RecipeT = TypeVar("RecipeT", bound=Recipe)

_PREFETCHED_STEPS = 2
_MAX_SKIPPED = 20  # training fails after this many consecutive skipped steps; an occasional bad batch causes only one
_DIVERGED = 1.1  # ratio of the last loss to the loss of the first step
_FIRST_STEPS, _LONG_WAIT_S = 3, 15.0  # steps and seconds before an early estimate of the remaining time
_AVERAGES = {"ema": "moving average of the weights", "average": "average of the last checkpoints"}


@dataclass(frozen=True)
class Result:
    """The result of a training run.

    Attributes:
        step: Number of the last step.
        interrupted: Whether a signal ended training early.
        model_folder: Folder of the model to use: the best model or an average. None if training was interrupted.
        scores: Development scores of ``model_folder`` if it is an average, otherwise empty.
        divergence: A message about how training diverged and what to change, or None if it did not diverge.
    """

    step: int
    interrupted: bool
    model_folder: Path | None
    scores: Scores
    divergence: str | None = None

    @property
    def diverged(self) -> bool:
        """Whether the model is worse at the end than at the beginning."""
        return self.divergence is not None


def _check_memory(task: Task[Any, Any, Any], trainer: _Trainer[Any]) -> None:
    """Warn if a step seems to need more memory than is available."""
    recipe, state = trainer.recipe, trainer.state
    limits = recipe.data.max_tokens, recipe.max_batch_examples
    shapes = largest_batch_shapes(trainer.prepared.train, trainer.stream.epoch_plan, *limits)
    objective = task.build_objective(trainer.model, trainer.recipe, trainer.prepared)
    with torch.compiler.set_stance("force_eager"):  # compiling for the estimate would double the compilation time
        estimate = estimate_memory(objective, state.optimizer, shapes, trainer.precision, has_ema=state.ema is not None)
    check_memory(estimate, available_memory(trainer.world.device))


def train(
    task: Task[RecipeT, Any, Any],
    recipe: RecipeT,
    run: Path,
    *,
    listener: Listener | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Train a model with ``recipe`` in the folder ``run``, or resume the run in this folder.

    After the first Ctrl-C or SIGTERM, training finishes the current step, saves a checkpoint, and returns a result with
    ``interrupted`` set. A second signal has its usual effect. Under torchrun, every process calls this function and
    gets the same result.

    Args:
        task: The task to train for; see :func:`headway.tasks.task_of`.
        recipe: The recipe as written by the user, possibly with missing keys.
        run: Path of the run folder.
        listener: Receives messages and progress.
        stop: An event that ends training like a signal. Any thread may set it.
    """
    with _started(task, recipe, run, listener or Listener(), stop or threading.Event()) as (trainer, interrupted):
        recipe, world, state, objective = trainer.recipe, trainer.world, trainer.state, trainer.objective
        if world.is_main:
            _check_memory(task, trainer)
        trainer.listener.on_started(state.step, recipe.training.steps)
        pace = _FirstSteps(state.step)
        slowdown = SlowdownMonitor(
            trainer.listener.on_message, int(os.environ.get("LOCAL_WORLD_SIZE", world.world_size))
        )
        while not trainer.is_finished:
            start = time.perf_counter()
            objective.train()
            rate = learning_rate(state.step + 1, recipe.training.steps, recipe.optimizer, recipe.model.d_model)
            for group in state.optimizer.param_groups:
                group["lr"] = rate * group["rate_factor"]
            trainer.unfreeze()

            batches = next(trainer.batches).with_global_counts(world.sum_counts)
            total = torch.zeros((), device=world.device)
            with explain_out_of_memory(max(map(BatchShape.of, batches.micro_batches.values()))):
                for index, batch in batches.micro_batches.items():
                    torch.manual_seed(_dropout_seed(recipe.training.seed, state.step, index))
                    with world.gradient_sync(objective, is_last=index == max(batches.micro_batches)):
                        with autocast(world.device, trainer.precision):
                            loss = objective(batch)
                        # If the loss is not finite, make its gradients NaN, so that all processes skip the step.
                        finite = torch.where(loss.detach().isfinite(), 1.0, torch.nan)
                        (loss * finite * world.world_size / batches.num_target_tokens).backward()
                    total += loss.detach()
                taken = clip_and_step(state.optimizer, recipe.optimizer.clip_norm)
            state.optimizer.zero_grad()
            state.finish_step(batches, total, taken)
            if state.step == 1:
                first = float(world.sum(total.double())) / batches.num_target_tokens
                state.progress.first_loss = first if math.isfinite(first) else None
            state.progress.elapsed_s += time.perf_counter() - start

            slowdown.check()
            if (seconds_left := pace.seconds_left(state.step, recipe.training)) is not None:
                trainer.listener.on_time_estimate(state.step, recipe.training.steps, seconds_left)
            if trainer.is_due(recipe.training.log_every):
                trainer.report(rate)
            if trainer.is_due(recipe.validation.every):
                trainer.validate()
            ends_early = world.any(interrupted.is_set())
            trainer.save_if_due(force=ends_early)
            if ends_early:
                return Result(state.step, True, None, {})
        return trainer.finish()


class _FirstSteps:
    """Estimate the remaining time after the first few steps if they are so slow that the first report is far away."""

    def __init__(self, step: int) -> None:
        self._first, self._begin, self._is_done = step, time.perf_counter(), False

    def seconds_left(self, step: int, training: TrainingConfig) -> float | None:
        """Return the estimated remaining seconds once, after a few slow steps and before the first report; otherwise
        None.
        """
        taken, seconds = step - self._first, time.perf_counter() - self._begin
        self._is_done = self._is_done or step % training.log_every == 0 or step == training.steps
        if self._is_done or taken < _FIRST_STEPS or seconds < _LONG_WAIT_S:
            return None
        self._is_done = True
        return seconds / taken * (training.steps - step)


@contextmanager
def _started(
    task: Task[RecipeT, Any, Any], recipe: RecipeT, run: Path, listener: Listener, stop: threading.Event
) -> Iterator[tuple[_Trainer[RecipeT], threading.Event]]:
    """Prepare or restore a run. Yield the trainer and ``stop``, which is set when training is interrupted."""
    with join_world(recipe.training.device) as world, adapt_openmp_waiting(), ExitStack() as stack:
        world.run_on_main(lambda: stack.enter_context(lock_run_folder(run)))
        recipe = world.run_on_main(lambda: _resolved(recipe, run))
        # Dropout is seeded in each step, which must not affect the caller's random numbers.
        on_gpu = world.device.type == "cuda"
        stack.enter_context(torch.random.fork_rng(devices=[world.device] if on_gpu else []))
        if on_gpu:
            stack.enter_context(cudnn_attention_disabled())
        listener = listener if world.is_main else Listener()
        prepared = world.run_on_main_first(partial(task.prepare, recipe, run, listener))
        assert prepared is not None  # no shard is missing, because this process builds all of them
        stack.enter_context(_interruptible(stop))
        keep, keep_best = recipe.checkpoints.keep, recipe.checkpoints.keep_best
        checkpoints = stack.enter_context(Checkpoints(run / "checkpoints", keep=keep, keep_best=keep_best))
        trainer = _Trainer(task, recipe, run, world, prepared, checkpoints, listener)
        stack.callback(trainer.close)
        yield trainer, stop


def _resolved(recipe: RecipeT, run: Path) -> RecipeT:
    """Complete the recipe, check that it can resume an existing run in ``run``, and write it to that folder."""
    recipe = complete_recipe(recipe, run)
    recipe.refuse_options_without_blocks()
    if begun := recipe_of_run(recipe, run):
        check_resumable(begun, recipe, run)
    elif message := learning_rate_warning(recipe.optimizer, recipe.model.d_model):
        warnings.warn(message, stacklevel=2)
    atomic_write_text(run / "recipe.toml", to_toml(recipe.as_dict()))
    return recipe


class _Trainer(Generic[RecipeT]):
    """The parts of a run that do not change during training, and the actions that are not part of every step."""

    def __init__(
        self,
        task: Task[RecipeT, Any, Any],
        recipe: RecipeT,
        run: Path,
        world: World,
        prepared: RunData,
        checkpoints: Checkpoints,
        listener: Listener,
    ) -> None:
        self.task, self.recipe, self.run, self.prepared = task, recipe, run, prepared
        self.world, self.checkpoints, self.listener = world, checkpoints, listener
        training, device = recipe.training, world.device
        torch.manual_seed(training.seed)
        self.model = accelerate(task.build_model(recipe, prepared))
        if training.start_from is not None and not checkpoint_folders(run / "checkpoints"):
            decoder = training.start_decoder_from
            load_initial_weights(
                self.model, model_folder(training.start_from), None if decoder is None else model_folder(decoder)
            )
        freeze(self.model, training.freeze)
        self.model.to(device)
        objective = task.build_objective(self.model, recipe, prepared)
        if objective.carries_state and world.world_size > 1:
            raise ConfigError(
                f"{world.world_size} processes cannot train a model whose state is carried from batch to batch; start "
                "a single process, or set model.carry_state = false"
            )
        blocks, auto = blocks_of(self.model), device.type == "cuda"
        compilable = architecture_of(recipe.model).is_compilable
        if compilable and (training.compile == "on" or (training.compile == "auto" and auto)):
            compile_blocks(blocks or [self.model])
        self.objective = world.wrap(objective, find_unused=recipe.leaves_weights_unused)
        depth_items = weight_depths(self.model, blocks).items()
        self._depths = {weight: depth for weight, depth in depth_items if weight.requires_grad}
        self.state = TrainingState(objective, recipe, run, world, checkpoints)
        step, progress = self.state.step, self.state.progress
        settings = {"step": step, "world_size": world.world_size, "order_version": recipe.data.order_version}
        self.precision = world.run_on_main(partial(record_environment, run, device, training.precision, **settings))
        if isinstance(self.state.optimizer, Muon):
            self.state.optimizer.uses_bfloat16 = self.precision == "bfloat16"
        position = {"first_epoch": progress.epoch, "first_batch": progress.batch}
        share = {"rank": world.rank, "world_size": world.world_size}
        self.stream = BatchStream(prepared.train, recipe, device, **position, **share)
        # If training runs on a GPU, a thread prepares batches in advance. On a CPU, there is no idle core for such a
        # thread.
        ahead = device.type == "cuda"
        self.batches = prefetch(self.stream.next_step, _PREFETCHED_STEPS) if ahead else iter(self.stream)
        self.metrics = MetricsWriter(run, step) if world.is_main else None
        self.metric = progress.best_metric or recipe.validation.metric
        if progress.best is None:
            self.metric = world.run_on_main(lambda: task.selection_metric(recipe))
        self._introduce()

    def close(self) -> None:
        """Stop the prefetching thread, and close the metrics files."""
        self.batches.close()
        if self.metrics is not None:
            self.metrics.close()

    @property
    def is_finished(self) -> bool:
        """Whether all steps were taken, or ``validation.patience`` consecutive validations gave no improvement."""
        return self.state.step >= self.recipe.training.steps or self._is_out_of_patience

    @property
    def _is_out_of_patience(self) -> bool:
        patience = self.recipe.validation.patience
        return patience is not None and self.state.progress.stale >= patience

    def unfreeze(self) -> None:
        """Make exactly the weights trainable that gradual unfreezing has reached."""
        every = self.recipe.training.unfreeze_every
        if every is not None:
            first = min(self._depths.values(), default=0)  # a model may not have any weights above its last block
            for weight, depth in self._depths.items():
                weight.requires_grad_(depth - first <= self.state.step // every)

    def is_due(self, interval: int) -> bool:
        """Return whether an action is due that happens every ``interval`` steps and after the last step."""
        return self.state.step % interval == 0 or self.state.step == self.recipe.training.steps

    def report(self, rate: float) -> None:
        """Write training metrics, and report progress."""
        return_freed_memory()
        self._check_skipped()
        state = self.state
        record: dict[str, int | float] = {"epoch": state.progress.epoch, "learning_rate": rate}
        record |= {**state.pop_window_metrics(), "elapsed_s": state.progress.elapsed_s}
        state.progress.train_loss = float(record["loss"])
        self._write_metrics("train", record)
        self.listener.on_step(state.step, self.recipe.training.steps, record)

    def validate(self) -> None:
        """Score the development set, if there is one, and write the model to ``best/`` if it is the best so far."""
        if self.prepared.dev is None:
            return
        self._check_skipped()
        state, progress = self.state, self.state.progress
        record = self.world.run_on_main(self._dev_scores)
        self._write_metrics("dev", record)
        self.listener.on_validation(state.step, record)
        progress.dev_loss = float(record["loss"])
        state.selection = selection_key(self.metric, record)
        if self._best is None or state.selection > self._best:
            progress.best, progress.best_step, progress.stale = state.selection.score, state.step, 0
            progress.best_loss, progress.best_metric = progress.dev_loss, self.metric
            self.world.run_on_main(lambda: self._write_model("best", record))
        else:
            progress.stale += 1

    @property
    def _best(self) -> SelectionKey | None:
        """The selection criteria of the best model so far. A run of an older version has no loss; an equal score is
        then not better.
        """
        progress = self.state.progress
        if progress.best is None:
            return None
        return SelectionKey(progress.best, math.inf if progress.best_loss is None else -progress.best_loss)

    def save_if_due(self, *, force: bool) -> None:
        """Save a checkpoint if one is due, if its score may be among the best scores, or if ``force`` is set."""
        state, settings = self.state, self.recipe.checkpoints
        scheduled = self.is_due(settings.every)
        may_be_best = settings.keep_best > 0 and state.selection is not None
        if state.step != state.saved_step and (force or scheduled or may_be_best):
            self._check_skipped()
            state.save(is_regular=scheduled or may_be_best, counts_as_newest=scheduled or not may_be_best)
            self.listener.on_saved(state.step)

    def finish(self) -> Result:
        """Save a final checkpoint, write and score the averaged models, and return a result with the best model."""
        self.save_if_due(force=True)
        progress = self.state.progress
        if self._is_out_of_patience:
            self.listener.on_message(
                f"stopped after step {progress.step:,}: the last {progress.stale:,} validations gave no improvement "
                f"over step {progress.best_step:,} (validation.patience)"
            )
        self.checkpoints.wait()
        return self.world.run_on_main(self._finish)

    def _finish(self) -> Result:
        folder, best, scores = self.run / "best", self._best, Scores()
        if self.prepared.dev is None or not folder.exists():
            self._write_model("best", scores)  # no validation has selected a best model, so write the latest weights
        averages = {} if self.state.ema is None else {"ema": self.state.ema.named_weights()}
        newest = averageable_checkpoints(self.run / "checkpoints")[: self.recipe.checkpoints.average]
        if len(newest) > 1:
            averages["average"] = average_weights(newest)
        self.task.complete_model_folder(folder, self.recipe)
        add_drawing(folder, self.model)
        for name, weights in averages.items():
            load_weights(self.model, weights, self.run / name)
            record = self._dev_scores()
            if record:
                self._write_metrics(name, record)
                self.listener.on_message(f"the {_AVERAGES[name]}:")
                self.listener.on_validation(self.state.step, record)
            self._write_model(name, record)
            self.task.complete_model_folder(self.run / name, self.recipe)
            add_drawing(self.run / name, self.model)
            selected = selection_key(self.metric, record) if record else None
            if best is None or selected is None or selected >= best:
                folder, scores, best = self.run / name, record, selected
        atomic_write_text(self.run / CHOSEN_MODEL_FILE, folder.name + "\n")
        return Result(self.state.step, False, folder, scores, self._check_divergence())

    def _check_divergence(self) -> str | None:
        """Return a message if training has diverged, else None. Also report if the model is worse than target
        frequencies.

        Training has diverged if the last loss is clearly above the loss of the first step (which may use another text
        and smoothing) and above the entropy of the targets: the loss of a model that has learned only the frequency of
        each target. (A pretrained model starts far below this entropy.) If the training loss is below the entropy, the
        model has learned something and is merely overfitted.
        """
        progress, optimizer = self.state.progress, self.recipe.optimizer
        kind, last = ("dev", progress.dev_loss) if self.prepared.dev is not None else ("training", progress.train_loss)
        if last is None or progress.first_loss is None:
            return None
        entropy = target_entropy(self.prepared.train, self.stream.epoch_plan)
        if last <= entropy:
            return None
        is_learned = progress.train_loss is not None and progress.train_loss <= entropy
        if last > _DIVERGED * progress.first_loss and not is_learned:
            return (
                f"training has diverged: the last {kind} loss, {format_number(last)}, is above the loss of the first "
                f"step, {format_number(progress.first_loss)}. Lower optimizer.learning_rate "
                f"({optimizer.learning_rate:g}), increase optimizer.warmup_steps or set optimizer.clip_norm = 1.0, and "
                "start over with --fresh"
            )
        self.listener.on_message(
            f"the last {kind} loss, {format_number(last)}, is above the entropy of the targets, {entropy:.2f}: a model "
            "that has learned only their frequencies would be better; train longer, or change the learning rate"
        )
        return None

    def _check_skipped(self) -> None:
        """Save and raise :class:`DivergenceError` if too many consecutive steps were skipped.

        The saved weights are those from before the first skipped step. This method makes the host wait for the device,
        so it is called only before a report, a validation or a save.
        """
        start = time.perf_counter()
        skipped, step = self.state.num_consecutive_skips(), self.state.step
        self.state.progress.elapsed_s += time.perf_counter() - start
        if skipped < _MAX_SKIPPED:
            return
        self.state.save(is_regular=False)
        self.world.run_on_main(self.checkpoints.wait)
        raise DivergenceError(
            f"the last {skipped} steps, up to step {step:,}, had an infinite loss or gradient and were skipped; the "
            f"weights have not changed since step {step - skipped:,} and are saved in {self.run / 'checkpoints'}. "
            "Lower optimizer.learning_rate, increase optimizer.warmup_steps or set optimizer.clip_norm = 1.0, and "
            "start over with --fresh"
        )

    def _dev_scores(self) -> Scores:
        return dev_scores(self.task, self.recipe, self.prepared, self.model, self.world.device, self.precision)

    def _write_model(self, name: str, scores: Scores) -> None:
        """Write a model folder with a model card that reports ``scores``."""
        card = model_card(self.task, self.recipe, self.state.progress, scores, self.prepared, self.model)
        self.task.build_bundle(self.model.eval(), self.recipe, self.prepared).save(self.run / name, card)

    def _write_metrics(self, kind: str, record: Mapping[str, int | float | str]) -> None:
        if self.metrics is not None:
            self.metrics.write(kind, self.state.step, record)

    def _introduce(self) -> None:
        data, plan, say = self.prepared.train, self.stream.epoch_plan, self.listener.on_message
        about, padding = "about " if plan.num_pools > 1 else "", plan.pool(0).padding_fraction
        say(
            f"{len(data):,} examples, {about}{plan.estimate_len():,} batches per epoch of at most "
            f"{self.recipe.data.max_tokens:,} tokens, {padding:.1%} padding"
        )
        if self.prepared.dev is not None and self.metric == "chrf2" and self.recipe.validation.metric == "bleu":
            say(
                "the best model is selected by chrF on the development set: almost no development target has four "
                "tokens, which BLEU requires"
            )
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        processes = f"{self.world.world_size} processes, " if self.world.world_size > 1 else ""
        threads = torch.get_num_threads()
        say(f"{weights:,} weights on {processes}{self.world.device}, {self.precision}, {threads} threads")
        if self.state.step:
            say(f"resuming after step {self.state.step:,}")


def _dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Return a 63-bit dropout seed for a micro-batch of a step."""
    return int(np.random.SeedSequence((seed, step, micro_batch)).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def _interruptible(event: threading.Event) -> Iterator[None]:
    """Set ``event`` at the first Ctrl-C or SIGTERM inside the block. A second signal has its usual effect.

    Python handles signals only in the main thread; in any other thread, this function has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        event.set()
        restore()

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
