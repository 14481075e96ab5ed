"""The training loop (Vaswani et al. 2017, section 5).

A step takes ``accumulate`` batches; its loss is the sum over their real target tokens divided by the number of these,
so that many small batches equal one large one. Dropout is seeded from (seed, step, micro-batch) and the order of the
data from (seed, epoch): running again after any interruption continues as if there had been none, and the course does
not depend on how many processes share the work.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.bundle import load_weights, named_weights
from headway.config import to_toml
from headway.engine.accelerate import accelerate
from headway.errors import CheckpointError, DivergenceError, LengthError
from headway.hardware import autocast, keep_freed_memory, return_freed_memory
from headway.models.classifier import EncoderClassifier
from headway.models.recurrent import RecurrentConfig
from headway.models.registry import Model, build_model
from headway.models.transformer import Transformer
from headway.storage import atomic_write, locked_folder
from headway.train.checkpoints import Checkpoints
from headway.train.distributed import World, joined
from headway.train.ema import MovingAverage
from headway.train.environment import note_start
from headway.train.freeze import freeze
from headway.train.interrupt import interruptible
from headway.train.judge import Judge, Record, Validate
from headway.train.labels import balanced_weights
from headway.train.memory import (
    Shape,
    available_memory,
    check_memory,
    estimate_memory,
    largest_shapes,
    out_of_memory_explained,
)
from headway.train.objective import LabelObjective, Objective, make_objective
from headway.train.optim import learning_rate, make_optimizer, step_if_finite
from headway.train.prepare import Prepared, prepare
from headway.train.recipe import Recipe, refuse_changes
from headway.train.report import Listener, Metrics, Silence
from headway.train.sharding import ShardedCheckpoints, whole
from headway.train.start import begun_recipe, completed, load_start
from headway.train.state import Progress, average_weights, checkpoint_folders, load
from headway.train.stream import Stream, Work, prefetched
from headway.train.window import Window

__all__ = ["Result", "Validate", "train"]

_PREFETCHED_STEPS = 2
_MOST_SKIPPED = 20  # steps in a row; a rare bad batch skips one
_AVERAGES = {"ema": "moving average of the weights", "average": "average of the last checkpoints"}


@dataclass(frozen=True)
class Result:
    """How a call of :func:`train` ended. ``model`` is the folder to use: an average, or the best."""

    step: int
    interrupted: bool
    model: Path | None
    scores: Record


def train(recipe: Recipe, run: Path, *, validate: Validate | None = None, listener: Listener | None = None) -> Result:
    """Train ``recipe`` in the folder ``run``, or go on where that folder stands.

    ``validate`` scores a model by translating; without it the loss on the development set decides which model is
    best. Ctrl-C or SIGTERM ends the step, saves and returns with ``interrupted`` set; a second one stops at once. Under
    torchrun every process calls this, and gets the same result.
    """
    keep_freed_memory()
    with joined(recipe.training.device) as world, ExitStack() as stack:
        world.on_main(lambda: stack.enter_context(locked_folder(run)))
        recipe = world.on_main(partial(completed, recipe, run))
        world.on_main(partial(_check_recipe, recipe, run))
        listener = (listener if world.is_main else None) or Silence()
        prepared = world.main_first(partial(prepare, recipe, run, listener))
        interrupted = stack.enter_context(interruptible())
        checkpoints = stack.enter_context(_checkpoints(recipe, run, world))
        trainer = stack.enter_context(_Trainer(recipe, run, world, prepared, checkpoints, validate, listener))
        while trainer.progress.step < recipe.training.steps and not trainer.stale:
            trainer.step()
            trainer.report()
            trainer.validate_if_due()
            stop = world.any(interrupted.is_set())
            trainer.save_if_due(force=stop)
            if stop:
                return Result(trainer.progress.step, True, None, {})
        trainer.save_if_due(force=True)
        trainer.say_if_stale()
        return trainer.finish()


def _checkpoints(recipe: Recipe, run: Path, world: World) -> Checkpoints:
    kind = partial(ShardedCheckpoints, world) if world.shards(recipe.training.sharding) else Checkpoints
    return kind(run / "checkpoints", keep=recipe.checkpoints.keep, keep_best=recipe.checkpoints.keep_best)


def _check_recipe(recipe: Recipe, run: Path) -> None:
    """Refuse to resume another recipe's run; write down the one that is run."""
    path = run / "recipe.toml"
    if begun := begun_recipe(run):
        refuse_changes(begun, recipe, run)
    with atomic_write(path) as aside:
        aside.write_text(to_toml(recipe.as_dict()), encoding="utf-8")


def _blocks(model: Model) -> list[nn.Module]:
    """What sharding splits; the recipe allows it for Transformers alone."""
    assert isinstance(model, Transformer)
    return [*model.encoder.blocks, *model.decoder.blocks]


def _check_lengths(model: Model, prepared: Prepared) -> None:
    """Refuse now what learned positions cannot hold, not thousands of steps later."""
    for name, corpora in {"training": prepared.train, "development": prepared.dev}.items():
        if corpora is None or model.max_length is None or isinstance(model, EncoderClassifier):
            continue
        longest = int(max(corpora.source_lengths.max(), corpora.target_lengths.max()))
        if longest > model.max_length:
            raise LengthError(
                f"model.max_length = {model.max_length}: the {name} data have a sequence of {longest} tokens with its "
                "end symbol; raise model.max_length, lower data.filter.max_length (training data), or choose "
                "positions = 'sinusoidal'"
            )


class _Trainer:
    """One run: model, optimiser, position in the data, and what is reported about them.

    ``model`` is what is validated and written, ``trained`` what is trained: the same, or shards of it.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        world: World,
        prepared: Prepared,
        checkpoints: Checkpoints,
        validate: Validate | None,
        listener: Listener,
    ) -> None:
        self.recipe, self.run, self.prepared, self.checkpoints = recipe, run, prepared, checkpoints
        self.world, self.listener = world, listener
        training = recipe.training
        self.device = world.device
        torch.manual_seed(training.seed)
        model = build_model(recipe.model, prepared.source_tokenizer.vocab_size, prepared.target_size)
        self.model: Model = accelerate(model)
        _check_lengths(self.model, prepared)
        if training.start_from is not None and not checkpoint_folders(run / "checkpoints"):
            load_start(self.model, Path(training.start_from))
        freeze(self.model, training.freeze)
        self.sharded = world.shards(training.sharding)
        self.trained = deepcopy(self.model) if self.sharded else self.model.to(self.device)
        self.objective = self._objective()
        self.optimizer = make_optimizer(self.trained, recipe.optimizer)
        self.ema = None if training.ema is None else MovingAverage(self.trained, training.ema)
        self.progress = self._restore()
        self.score: float | None = None  # of the weights as they are now, where they were validated
        start = partial(note_start, run, self.device, training.precision, step=self.progress.step)
        self.precision = world.on_main(partial(start, processes=world.processes)).precision
        self.judge = Judge(recipe, prepared, self.model, self.device, self.precision, validate)
        self.stream = Stream(
            prepared.train,
            recipe,
            self.device,
            epoch=self.progress.epoch,
            batch=self.progress.batch,
            rank=world.rank,
            processes=world.processes,
        )
        self.metrics = Metrics(run, self.progress.step) if world.is_main else None
        self.saved_step = self.progress.step
        self.window = Window(self.progress, world)
        self._introduce()
        if world.is_main and not self.sharded:
            self._check_memory()

    def __enter__(self) -> _Trainer:
        # On a GPU batches are there before they are needed; a CPU has no hands free for that.
        ahead = self.device.type == "cuda"
        self.works = prefetched(self.stream.next, _PREFETCHED_STEPS) if ahead else iter(self.stream)
        return self

    def __exit__(self, *_: object) -> None:
        self.works.close()
        if self.metrics is not None:
            self.metrics.close()

    def _objective(self) -> nn.Module:
        """What computes a micro-batch's loss, its gradients shared with the other processes."""
        training, model = self.recipe.training, self.trained
        fits = not isinstance(self.recipe.model, RecurrentConfig)  # a compiler would unroll its steps
        compiled = fits and (training.compile == "on" or (training.compile == "auto" and self.device.type == "cuda"))
        return self.world.spread(
            self._make_objective(model, compiled=compiled and not self.sharded),
            blocks=_blocks(model) if self.sharded else None,
            unused=getattr(self.recipe.model, "layer_dropout", 0) > 0,
        )

    def _make_objective(self, model: Model, *, compiled: bool = False) -> Objective | LabelObjective:
        training = self.recipe.training
        balanced = training.class_weights == "balanced"
        return make_objective(
            model,
            training.label_smoothing,
            training.r_drop,
            class_weights=balanced_weights(self.prepared.labels) if balanced else None,
            compiled=compiled,
        )

    def _restore(self) -> Progress:
        """Go on from the newest checkpoint, if there is one."""
        found = self.world.main_first(self.checkpoints.find)
        path, snapshot = found or (None, None)
        if self.world.any(self.world.on_main(lambda: path) != path):
            raise CheckpointError(
                f"{self.run}: the processes find different checkpoints there; put the run folder on a file system that "
                "all of them share"
            )
        if path is None or snapshot is None:
            return Progress()
        load(snapshot, path, self.trained, self.optimizer)
        if self.ema is not None and snapshot.ema is not None:
            self.ema.load(snapshot.ema, path)
        return snapshot.progress

    def _introduce(self) -> None:
        data, plan = self.prepared.train, self.stream.plan
        self.listener.say(
            f"{len(data):,} examples, {len(plan):,} batches an epoch of at most {self.recipe.data.max_tokens:,} "
            f"tokens, {data.padding(plan):.1%} padding"
        )
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        processes = f"{self.world.processes} processes, " if self.world.processes > 1 else ""
        threads = torch.get_num_threads()
        self.listener.say(f"{weights:,} weights on {processes}{self.device}, {self.precision}, {threads} threads")
        if self.progress.step:
            self.listener.say(f"resuming after step {self.progress.step:,}")

    def _check_memory(self) -> None:
        """Say so where memory will be short, before the hours that it takes to find out."""
        plain = self._make_objective(self.model)
        shapes = largest_shapes(self.prepared.train, self.stream.plan)
        estimate = estimate_memory(plain, self.optimizer, shapes, self.precision, average=self.ema is not None)
        if message := check_memory(estimate, available_memory(self.device)):
            warnings.warn(message, stacklevel=2)

    @property
    def stale(self) -> bool:
        """Whether validation has not improved for as long as the recipe allows."""
        patience = self.recipe.validation.patience
        return patience is not None and self.progress.stale >= patience

    def say_if_stale(self) -> None:
        """Tell why training ends before its last step."""
        progress = self.progress
        if self.stale:
            self.listener.say(
                f"stopped after step {progress.step:,}: the last {progress.stale:,} validations brought nothing better "
                f"than step {progress.best_step:,} did (validation.patience)"
            )

    def step(self) -> None:
        """One optimiser step over the next micro-batches."""
        recipe, progress = self.recipe, self.progress
        begin = time.perf_counter()
        self.objective.train()
        work = next(self.works)
        rate = self._learning_rate(progress.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with out_of_memory_explained(max(Shape.of(batch.tokens) for batch in work.micro_batches)):
            total = self._backward(work)
            taken = step_if_finite(self.optimizer, recipe.optimizer.clip_norm)
        self.optimizer.zero_grad()
        progress.step += 1
        progress.epoch, progress.batch = work.epoch, work.batch
        if self.ema is not None:
            self.ema.update(progress.step, taken)
        self.window.add(total, work, taken)
        self.score = None
        progress.elapsed_s += time.perf_counter() - begin

    def _backward(self, work: Work) -> Float[Tensor, ""]:
        """Leave the gradients of a step; returns its summed loss, or this process's share of it."""
        total = torch.zeros((), device=self.device)
        for batch in work.micro_batches:
            torch.manual_seed(_dropout_seed(self.recipe.training.seed, self.progress.step, batch.index))
            with self.world.sharing(self.objective, last=batch is work.micro_batches[-1]):
                with autocast(self.device, self.precision):
                    loss = self.objective(batch.tokens)
                # A loss that is not finite spoils its gradients, which all processes share and decide by.
                sound = torch.where(loss.detach().isfinite(), 1.0, torch.nan)
                (loss * sound * self.world.processes / work.num_targets).backward()
            total += loss.detach()
        return total

    def _learning_rate(self, step: int) -> float:
        return learning_rate(step, self.recipe.training.steps, self.recipe.optimizer, self.recipe.model.d_model)

    def report(self) -> None:
        """Write a line of metrics where one is due, and show progress."""
        step, steps = self.progress.step, self.recipe.training.steps
        if step % self.recipe.training.log_every and step != steps:
            return
        return_freed_memory()
        self._check_skipped()
        where = {"epoch": self.progress.epoch, "learning_rate": self._learning_rate(step)}
        whole: dict[str, int | float] = {**where, **self.window.close(), "elapsed_s": self.progress.elapsed_s}
        self._write("train", whole)
        self.listener.step(step, steps, whole)

    def _write(self, kind: str, record: Mapping[str, int | float | str]) -> None:
        """Add a line to the metrics."""
        if self.metrics is not None:
            self.metrics.write(kind, self.progress.step, record)

    def _check_skipped(self) -> None:
        """Give up after many steps without effect: the weights are still those before the first of them; save them.

        The host waits for the device here, so it is done where something is reported, scored or saved.
        """
        begin = time.perf_counter()
        skipped, step = self.window.skipped_in_a_row, self.progress.step
        self.progress.elapsed_s += time.perf_counter() - begin
        if skipped < _MOST_SKIPPED:
            return
        self._save(regular=False)
        self.world.on_main(self.checkpoints.wait)
        raise DivergenceError(
            f"the last {skipped} steps, up to step {step:,}, gave an infinite loss or gradient and were skipped; the "
            f"weights are still those after step {step - skipped:,}, saved in {self.run / 'checkpoints'}. Lower "
            "optimizer.learning_rate, lengthen optimizer.warmup_steps or set optimizer.clip_norm = 1.0, and start over "
            "with --fresh"
        )

    def validate_if_due(self) -> None:
        """Score the development set, and keep the model if it is the best so far."""
        step = self.progress.step
        if self.prepared.dev is None or (step % self.recipe.validation.every and step != self.recipe.training.steps):
            return
        self._check_skipped()
        self._gather()
        record = self.world.on_main(self.judge.scores)
        self._write("dev", record)
        self.listener.validation(step, record)
        self.score = self.judge.quality(record)
        if self.progress.best is None or self.score > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.stale = self.score, step, 0
            self.world.on_main(lambda: self.judge.write(self.run / "best", self.progress, record))
        else:
            self.progress.stale += 1

    def _gather(self) -> None:
        """Put the weights as they are now into the model that process 0 validates and writes."""
        if self.sharded:
            load_weights(self.model, whole(named_weights(self.trained)), self.run)

    def save_if_due(self, *, force: bool) -> None:
        """Save the training state at its interval, where it may be among the best, or now."""
        step, settings = self.progress.step, self.recipe.checkpoints
        counted = step % settings.every == 0 or step == self.recipe.training.steps
        may_be_best = settings.keep_best > 0 and self.score is not None
        if step != self.saved_step and (force or counted or may_be_best):
            self._check_skipped()
            self._save(regular=counted or may_be_best, counted=counted or not may_be_best)

    def _save(self, *, regular: bool, counted: bool = True) -> None:
        self.window.note()
        if self.sharded or self.world.is_main:
            self.checkpoints.save(
                self.progress,
                self.trained,
                self.optimizer,
                ema=None if self.ema is None else self.ema.named_weights(),
                score=self.score,
                regular=regular,
                counted=counted,
            )
        self.saved_step = self.progress.step

    def finish(self) -> Result:
        """Make the averages of the weights, score them, and tell which model to use: the one that scores best."""
        self._gather()
        averaged = None if self.ema is None else whole(self.ema.named_weights())
        self.checkpoints.wait()
        return self.world.on_main(lambda: self._finish(averaged))

    def _finish(self, ema: dict[str, Tensor] | None) -> Result:
        folder = self.run / "best"
        quality, scores = self.progress.best, Record()
        if self.prepared.dev is None or not folder.exists():
            self.judge.write(folder, self.progress, scores)  # the newest: nothing tells which was the best
        for name, weights in self._averages(ema):
            load_weights(self.model, weights, self.run / name)
            record = self.judge.scores()
            if record:
                self._write(name, record)
                self.listener.say(f"the {_AVERAGES[name]}:")
                self.listener.validation(self.progress.step, record)
            self.judge.write(self.run / name, self.progress, record)
            if quality is None or not record or self.judge.quality(record) >= quality:
                folder, scores = self.run / name, record
                quality = self.judge.quality(record) if record else None
        return Result(self.progress.step, False, folder, scores)

    def _averages(self, ema: dict[str, Tensor] | None) -> Iterator[tuple[str, dict[str, Tensor]]]:
        if ema is not None:
            yield "ema", ema
        newest = self.checkpoints.newest(self.recipe.checkpoints.average)
        if len(newest) > 1:
            yield "average", average_weights(newest)


def _dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """One seed of 63 bits for each (seed, step, micro-batch)."""
    return int(np.random.SeedSequence((seed, step, micro_batch)).generate_state(1, np.uint64)[0]) >> 1
