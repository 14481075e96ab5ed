"""The batches of each optimizer step, starting from any position in the data.

A step takes ``training.accumulate`` micro-batches, however many processes there are: rank r takes every micro-batch
whose index is r modulo the number of processes. So neither the order of the data nor the size of a step depends on the
number of processes, and every process knows how many targets the whole step has without communication.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headway.data.batching import EpochPlan, PaddedBatch, TokenDataset
from headway.errors import ConfigError
from headway.text.tokenizer import BOS, PAD
from headway.train.recipe import Recipe

__all__ = ["MicroBatch", "StepBatches", "Stream", "TokenBatch", "prefetched", "to_device"]

T = TypeVar("T")


@dataclass(frozen=True)
class TokenBatch:
    """A batch as tensors on the device of the model.

    Attributes:
        source: Source tokens, padded.
        shifted: The decoder's input: the target, shifted right behind the begin symbol.
        positions: Indices of the real (non-padding) target tokens in the flattened (B, T).
        targets: The real target tokens, row after row, end symbols included.
    """

    source: Int[Tensor, "B S"]
    shifted: Int[Tensor, "B T"]
    positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]


def to_device(batch: PaddedBatch, device: torch.device) -> TokenBatch:
    """Convert a batch to tensors on ``device``, without waiting for the copy.

    The real targets are selected on the host: selecting by a mask on a GPU would make the host wait for their number.
    """
    positions = np.flatnonzero(batch.target != PAD)

    def moved(array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    target = moved(batch.target)
    return TokenBatch(
        source=moved(batch.source),
        shifted=F.pad(target[:, :-1], (1, 0), value=BOS),
        positions=moved(positions),
        targets=moved(batch.target.reshape(-1)[positions]),
    )


@dataclass(frozen=True)
class MicroBatch:
    """One batch of a step. ``index`` numbers the micro-batches of the whole step and seeds this one's dropout."""

    index: int
    tokens: TokenBatch


@dataclass(frozen=True)
class StepBatches:
    """This process's micro-batches of one step.

    Attributes:
        micro_batches: The micro-batches.
        num_sources: Real source tokens in the whole step, all processes together.
        num_targets: Real target tokens in the whole step.
        epoch: Position in the data after this step: the epoch, counted from 0.
        batch: Position in the data after this step: the batch in the epoch, counted from 0.
    """

    micro_batches: tuple[MicroBatch, ...]
    num_sources: int
    num_targets: int
    epoch: int
    batch: int


class Stream:
    """An endless iterator over the batches of each step, starting at ``epoch`` and ``batch``."""

    def __init__(
        self,
        dataset: TokenDataset,
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
                "each needs the same number of a step's batches, but training.accumulate = "
                f"{recipe.training.accumulate}; set it to a multiple of {processes}, or sharding to 'none'"
            )
        self._dataset, self._recipe, self._device = dataset, recipe, device
        self._epoch, self._batch = epoch, batch
        self._rank, self._processes = rank, processes
        self.plan = self._plan_epoch()

    def __iter__(self) -> Generator[StepBatches, None, None]:
        while True:
            yield self.next_step()

    def next_step(self) -> StepBatches:
        """Return the batches of the next step."""
        if self._device.index:  # a prefetching thread starts on GPU 0
            torch.cuda.set_device(self._device)
        mine = []
        sources = targets = 0
        for index in range(self._recipe.training.accumulate):
            while self._batch >= len(self.plan):  # corpus weights below 1 can leave an epoch empty
                self._epoch, self._batch = self._epoch + 1, 0
                self.plan = self._plan_epoch()
            rows = self.plan[self._batch]
            self._batch += 1
            batch = self._dataset.batch(rows)
            sources += int((batch.source != PAD).sum())
            targets += int((batch.target != PAD).sum())
            if index % self._processes == self._rank:
                mine.append(MicroBatch(index, to_device(batch, self._device)))
        return StepBatches(tuple(mine), sources, targets, self._epoch, self._batch)

    def _plan_epoch(self) -> EpochPlan:
        data = self._recipe.data
        return self._dataset.epoch(
            self._recipe.training.seed,
            self._epoch,
            max_tokens=data.max_tokens,
            pool_size=data.pool_size,
            max_examples=self._recipe.max_examples,
        )


def prefetched(take: Callable[[], T], ahead: int) -> Generator[T, None, None]:
    """Yield the results of calling ``take`` again and again, up to ``ahead`` calls early, from a thread.

    On a GPU, batches then reach the device before they are needed. An error of ``take`` is raised in its turn. The
    thread ends when the generator is closed.
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
