"""The training loop (Vaswani et al. 2017, section 5).

A step takes ``accumulate`` batches; its loss is the sum over their real target tokens divided by the number of these,
so that many small batches equal one large one. Dropout is seeded from (seed, step, micro-batch) and the order of the
data from (seed, epoch): running again after any interruption continues as if there had been none.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from headway.bundle import Bundle, load_weights
from headway.config import read_toml, to_toml
from headway.data.batching import Batch, Corpora, EpochPlan
from headway.errors import CheckpointError, LengthError, TrainingError
from headway.evaluate import Score
from headway.models.build import Model, build_model
from headway.storage import replaced_file
from headway.train import state
from headway.train.card import model_card
from headway.train.hardware import autocast, choose_device, keep_freed_memory, return_freed_memory
from headway.train.objective import TokenBatch, batch_loss, to_device
from headway.train.optim import learning_rate, make_optimizer
from headway.train.prepare import Prepared, prepare
from headway.train.recipe import Recipe, changed_keys
from headway.train.report import Listener, Metrics, Silence

__all__ = ["Result", "Stream", "Validate", "train"]

Validate = Callable[[Bundle], Sequence[Score]]


@dataclass(frozen=True)
class Result:
    """How a call of :func:`train` ended. ``model`` is the folder to use: the average, or the best."""

    step: int
    interrupted: bool
    model: Path | None
    scores: dict[str, float | str]


def train(recipe: Recipe, run: Path, *, validate: Validate | None = None, listener: Listener | None = None) -> Result:
    """Train ``recipe`` in the folder ``run``, or go on where that folder stands.

    ``validate`` scores a model by translating; without it the loss on the development set decides which model is
    best. Ctrl-C or SIGTERM ends the step, saves and returns with ``interrupted`` set; a second one stops at once.
    """
    listener = listener or Silence()
    _check_recipe(recipe, run)
    keep_freed_memory()
    prepared = prepare(recipe, run, listener)
    trainer = _Trainer(recipe, run, prepared, validate, listener)
    with _interruptible() as interrupted:
        try:
            while trainer.progress.step < recipe.training.steps and not trainer.stale:
                trainer.step()
                trainer.report()
                trainer.validate_if_due()
                trainer.save_if_due(force=interrupted.is_set())
                if interrupted.is_set():
                    return Result(trainer.progress.step, True, None, {})
            trainer.save_if_due(force=True)
            return trainer.finish()
        finally:
            trainer.metrics.close()


def _check_recipe(recipe: Recipe, run: Path) -> None:
    """Refuse to resume another recipe's run; write down the one that is run."""
    path = run / "recipe.toml"
    resolved = recipe.as_dict()
    if path.exists() and state.checkpoint_folders(run / "checkpoints"):
        old = Recipe.parse(read_toml(path), str(path)).as_dict()
        if changed := changed_keys(old, resolved):
            raise CheckpointError(
                f"{run} was trained with another recipe: {'; '.join(changed)}. Training length and the intervals of "
                "validation and checkpoints may change on resuming, these may not: put them back, choose another "
                "--run, or start over with --fresh"
            )
    with replaced_file(path) as aside:
        aside.write_text(to_toml(resolved), encoding="utf-8")


def _check_lengths(model: Model, prepared: Prepared) -> None:
    """Refuse now what learned positions cannot hold, not thousands of steps later."""
    for name, corpora in {"training": prepared.train, "development": prepared.dev}.items():
        if corpora is None or model.max_length is None:
            continue
        longest = int(max(corpora.source_lengths.max(), corpora.target_lengths.max()))
        if longest > model.max_length:
            raise LengthError(
                f"model.max_length = {model.max_length}: the {name} data have a sequence of {longest} tokens with its "
                "end symbol; raise model.max_length, lower data.filter.max_length (training data), or choose "
                "positions = 'sinusoidal'"
            )


class _Trainer:
    """One run: model, optimiser, position in the data, and what is reported about them."""

    def __init__(
        self, recipe: Recipe, run: Path, prepared: Prepared, validate: Validate | None, listener: Listener
    ) -> None:
        self.recipe, self.run, self.prepared = recipe, run, prepared
        self.validate, self.listener = validate, listener
        self.device = choose_device(recipe.training.device)
        torch.manual_seed(recipe.training.seed)
        self.model: Model = build_model(
            recipe.model, prepared.source_tokenizer.vocab_size, prepared.target_tokenizer.vocab_size
        ).to(self.device)
        _check_lengths(self.model, prepared)
        self.optimizer = make_optimizer(self.model, recipe.optimizer)
        self.progress = state.restore(run / "checkpoints", self.model, self.optimizer) or state.Progress()
        self.metrics = Metrics(run, self.progress.step)
        self.saved_step = self.progress.step
        self.batches = Stream(prepared.train, recipe, self.progress)
        self.window = _Window(self.progress, self.device)
        self._introduce()

    def _introduce(self) -> None:
        data, plan = self.prepared.train, self.batches.plan
        self.listener.say(
            f"{len(data):,} pairs, {len(plan):,} batches an epoch of at most {self.recipe.data.max_tokens:,} tokens, "
            f"{data.padding(plan):.1%} padding"
        )
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        with autocast(self.device, self.recipe.training.precision):
            precision = "bfloat16" if torch.is_autocast_enabled(self.device.type) else "float32"
        self.listener.say(f"{weights:,} weights on {self.device}, {precision}, {torch.get_num_threads()} threads")
        if self.progress.step:
            self.listener.say(f"resuming after step {self.progress.step:,}")

    @property
    def stale(self) -> bool:
        """Whether validation has not improved for as long as the recipe allows."""
        patience = self.recipe.validation.patience
        return patience is not None and self.progress.stale >= patience

    def step(self) -> None:
        """One optimiser step over the next micro-batches."""
        training, optimizer = self.recipe.training, self.recipe.optimizer
        begin = time.perf_counter()
        self.model.train()
        micro_batches = [to_device(self.batches.next(), self.device) for _ in range(training.accumulate)]
        targets = sum(batch.num_targets for batch in micro_batches)
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(micro_batches):
            torch.manual_seed(_stream_seed(training.seed, self.progress.step, index))
            with autocast(self.device, training.precision):
                loss = batch_loss(self.model, batch, training.label_smoothing) / targets
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        if optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), optimizer.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.step + 1, training.steps, optimizer, self.recipe.model.d_model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.step += 1
        self.progress.elapsed_s += time.perf_counter() - begin
        self.window.add(total * targets, micro_batches)

    def report(self) -> None:
        """Write a line of metrics where one is due, and show progress."""
        step, steps = self.progress.step, self.recipe.training.steps
        if step % self.recipe.training.log_every and step != steps:
            return
        return_freed_memory()
        record = self.window.close()
        self._refuse_non_finite(record["loss"])
        rate = learning_rate(step, steps, self.recipe.optimizer, self.recipe.model.d_model)
        where = {"epoch": self.progress.epoch, "learning_rate": rate}
        whole: dict[str, int | float] = {**where, **record, "elapsed_s": self.progress.elapsed_s}
        self.metrics.write("train", step, whole)
        self.listener.step(step, steps, whole)

    def validate_if_due(self) -> None:
        """Score the development set, and keep the model if it is the best so far."""
        step = self.progress.step
        if self.prepared.dev is None or (step % self.recipe.validation.every and step != self.recipe.training.steps):
            return
        record = self._scores()
        self.metrics.write("dev", step, record)
        self.listener.validation(step, record)
        score = self._quality(record)
        if self.progress.best is None or score > self.progress.best:
            self.progress.best, self.progress.best_step, self.progress.stale = score, step, 0
            self._write_bundle(self.run / "best", record)
        else:
            self.progress.stale += 1

    def save_if_due(self, *, force: bool) -> None:
        """Save the training state at its interval, or now."""
        step = self.progress.step
        if step != self.saved_step and (force or step % self.recipe.checkpoints.every == 0):
            folder = self.run / "checkpoints"
            keep = self.recipe.checkpoints.keep
            regular = step % self.recipe.checkpoints.every == 0 or step == self.recipe.training.steps
            self._refuse_non_finite(self.window.note())
            state.save(folder, self.progress, self.model, self.optimizer, keep, regular=regular)
            self.saved_step = step

    def _refuse_non_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {self.progress.step}; the last checkpoint is of step {self.saved_step}. "
                "Lower optimizer.learning_rate, lengthen optimizer.warmup_steps or set optimizer.clip_norm = 1.0, "
                "and start over with --fresh"
            )

    def finish(self) -> Result:
        """Average the newest checkpoints, score the average, and tell which model to use: the better one."""
        newest = state.checkpoint_folders(self.run / "checkpoints")[: self.recipe.checkpoints.average]
        model = self.run / "best"
        scores: dict[str, float | str] = {}
        if len(newest) > 1:
            load_weights(self.model, state.average_weights(newest), newest[0])
            if self.prepared.dev is not None:
                scores = self._scores()
                self.metrics.write("average", self.progress.step, scores)
                self.listener.validation(self.progress.step, scores)
            self._write_bundle(self.run / "average", scores)
            if not scores or self.progress.best is None or self._quality(scores) >= self.progress.best:
                model = self.run / "average"
        elif self.prepared.dev is None or not model.exists():
            self._write_bundle(model, scores)
        return Result(self.progress.step, False, model, scores)

    def _quality(self, record: dict[str, float | str]) -> float:
        """What decides which model is better; higher is."""
        by_bleu = self.recipe.validation.metric == "bleu" and "BLEU" in record
        return float(record["BLEU"]) if by_bleu else -float(record["loss"])

    def _scores(self) -> dict[str, float | str]:
        """Loss and perplexity on the development set, and what ``validate`` adds."""
        assert self.prepared.dev is not None
        self.model.eval()
        loss = _dev_loss(self.model, self.prepared.dev, self.recipe, self.device)
        self._refuse_non_finite(loss)
        record: dict[str, float | str] = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        for score in self.validate(self._bundle()) if self.validate else ():
            record |= {score.name: score.value, f"{score.name} signature": score.signature}
        return record

    def _bundle(self) -> Bundle:
        return Bundle(
            self.recipe.task, self.model.eval(), self.prepared.source_tokenizer, self.prepared.target_tokenizer
        )

    def _write_bundle(self, folder: Path, scores: dict[str, float | str]) -> None:
        card = model_card(self.recipe, self.progress, scores, self.prepared.train, self.model)
        self._bundle().save(folder, card)


@torch.inference_mode()
def _dev_loss(model: Model, dev: Corpora, recipe: Recipe, device: torch.device) -> float:
    """Cross-entropy without smoothing, in nats for each target token."""
    total, targets = 0.0, 0
    for rows in dev.sequential(max_tokens=recipe.data.max_tokens):
        batch = to_device(dev.batch(rows), device)
        with autocast(device, recipe.training.precision):
            total += float(batch_loss(model, batch, 0.0))
        targets += batch.num_targets
    return total / max(targets, 1)


class Stream:
    """The batches from a position on, epoch after epoch; taking one moves the position."""

    def __init__(self, corpora: Corpora, recipe: Recipe, progress: state.Progress) -> None:
        self._corpora, self._recipe, self._progress = corpora, recipe, progress
        self.plan = self._epoch()

    def next(self) -> Batch:
        """The next batch."""
        while self._progress.batch >= len(self.plan):  # weights below 1 can leave an epoch empty
            self._progress.epoch, self._progress.batch = self._progress.epoch + 1, 0
            self.plan = self._epoch()
        batch = self._corpora.batch(self.plan[self._progress.batch])
        self._progress.batch += 1
        return batch

    def _epoch(self) -> EpochPlan:
        data = self._recipe.data
        return self._corpora.epoch(
            self._recipe.training.seed, self._progress.epoch, max_tokens=data.max_tokens, pool_size=data.pool_size
        )


class _Window:
    """Sums since the last report. The loss stays on the device until then, so that no step waits for it.

    The loss and its targets go on from ``progress``, so that a record is the same with and without an interruption.
    """

    def __init__(self, progress: state.Progress, device: torch.device) -> None:
        self._progress = progress
        self._loss = torch.tensor(progress.loss, dtype=torch.float64, device=device)
        self._restart()

    def _restart(self) -> None:
        self._begin = self._progress.elapsed_s
        self._sources = self._targets = 0

    def add(self, loss: Tensor, batches: list[TokenBatch]) -> None:
        """Count a step with its summed loss."""
        targets = sum(batch.num_targets for batch in batches)
        self._loss += loss
        self._progress.loss_targets += targets
        self._targets += targets
        self._sources += sum(batch.num_sources for batch in batches)

    def note(self) -> float:
        """Put the summed loss into the progress that is to be saved, and return it."""
        self._progress.loss = float(self._loss)
        return self._progress.loss

    def close(self) -> dict[str, float]:
        """Mean loss for each target token and tokens per second of training since the last report; begins anew."""
        seconds = self._progress.elapsed_s - self._begin
        record = {
            "loss": float(self._loss) / self._progress.loss_targets,
            "target_tokens_per_s": self._targets / seconds,
            "source_tokens_per_s": self._sources / seconds,
        }
        self._progress.loss_targets = 0
        self._loss.zero_()
        self._restart()
        return record


def _stream_seed(seed: int, step: int, micro_batch: int) -> int:
    """One seed of 63 bits for each (seed, step, micro-batch)."""
    return int(np.random.SeedSequence((seed, step, micro_batch)).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the next one acts as usual. Only the main thread hears
    signals."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in signals}

    def note(number: int, _frame: FrameType | None) -> None:
        event.set()
        signal.signal(number, previous[signal.Signals(number)])

    for number in signals:
        signal.signal(number, note)
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
