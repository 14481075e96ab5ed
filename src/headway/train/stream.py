"""The work of each optimiser step, from a position in the data on.

A step takes ``training.accumulate`` micro-batches, however many processes there are: these share them out, the i-th to
process i modulo their number. So neither the order of the data nor the size of a step depends on the processes, and
every process knows how many targets the whole step has without asking the others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import torch

from headway.data.batching import Corpora, EpochPlan
from headway.errors import ConfigError
from headway.text.tokenizer import PAD
from headway.train.objective import TokenBatch, to_device
from headway.train.recipe import Recipe

__all__ = ["MicroBatch", "Stream", "Work", "prefetched"]

T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch:
    """One batch of a step; ``index`` counts the batches of the whole step and seeds the dropout of this one."""

    index: int
    tokens: TokenBatch


@dataclass(frozen=True)
class Work:
    """One step's micro-batches for this process, the size of the whole step, and the position in the data after it."""

    micro_batches: tuple[MicroBatch, ...]
    num_sources: int
    num_targets: int
    epoch: int
    batch: int


class Stream:
    """The work of step after step, epoch after epoch, without end. ``epoch`` and ``batch`` are where to begin."""

    def __init__(
        self,
        corpora: Corpora,
        recipe: Recipe,
        device: torch.device,
        *,
        epoch: int = 0,
        batch: int = 0,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if processes > recipe.training.accumulate:
            raise ConfigError(
                f"{processes} processes share the batches of a step, but training.accumulate = "
                f"{recipe.training.accumulate}; set it to {processes} or a multiple (and lower data.max_tokens or "
                "optimizer.learning_rate if the step is then too large), or start fewer processes"
            )
        if recipe.training.sharding == "full" and recipe.training.accumulate % processes:
            raise ConfigError(
                f"training.sharding = 'full': {processes} processes gather their weights together, batch by batch, so "
                f"each needs as many of a step's batches, but training.accumulate = {recipe.training.accumulate}; set "
                f"it to a multiple of {processes}, or sharding to 'none'"
            )
        self._corpora, self._recipe, self._device = corpora, recipe, device
        self._epoch, self._batch = epoch, batch
        self._rank, self._processes = rank, processes
        self.plan = self._plan_epoch()

    def __iter__(self) -> Generator[Work, None, None]:
        while True:
            yield self.next()

    def next(self) -> Work:
        """The next step's."""
        if self._device.index:  # called in a thread of its own, which begins on GPU 0
            torch.cuda.set_device(self._device)
        mine = []
        sources = targets = 0
        for index in range(self._recipe.training.accumulate):
            while self._batch >= len(self.plan):  # weights below 1 can leave an epoch empty
                self._epoch, self._batch = self._epoch + 1, 0
                self.plan = self._plan_epoch()
            rows = self.plan[self._batch]
            self._batch += 1
            batch = self._corpora.batch(rows)
            sources += int((batch.source != PAD).sum())
            targets += int((batch.target != PAD).sum())
            if index % self._processes == self._rank:
                mine.append(MicroBatch(index, to_device(batch, self._device)))
        return Work(tuple(mine), sources, targets, self._epoch, self._batch)

    def _plan_epoch(self) -> EpochPlan:
        data = self._recipe.data
        return self._corpora.epoch(
            self._recipe.training.seed,
            self._epoch,
            max_tokens=data.max_tokens,
            pool_size=data.pool_size,
            max_examples=self._recipe.max_examples,
        )


def prefetched(take: Callable[[], T], ahead: int) -> Generator[T, None, None]:
    """What ``take`` gives, call after call, made up to ``ahead`` calls early by a thread; errors come in their turn.

    For GPUs: batches lie on the device before they are needed. The thread ends when the iterator is closed.
    """
    ready: queue.Queue[T | BaseException] = queue.Queue(ahead)
    closed = threading.Event()

    def fill() -> None:
        while not closed.is_set():
            item: T | BaseException
            try:
                item = take()
            except BaseException as error:
                item = error
            while not closed.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    thread = threading.Thread(target=fill, name="headway-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        thread.join()
