"""Generate the batches of each optimizer step, starting at any position in the data.

A step uses ``training.accumulate`` micro-batches, regardless of the number of processes: rank r reads only the
micro-batches whose index is r modulo the number of processes. Therefore neither the order of the data nor the size of a
step depends on the number of processes. Every process plans all batches from the lengths of the examples, so the number
of targets in the whole step is known without communication. The processes add up these numbers only for masked language
models, because their targets are not known until a batch is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headway.data.batching import PaddedBatch, TokenDataset
from headway.data.epoch_plan import EpochPlan
from headway.errors import ConfigError
from headway.text.base import BOS, PAD
from headway.training.recipe import Recipe

T = TypeVar("T")


@dataclass(frozen=True)
class TokenBatch:
    """A batch of tensors on the device of the model.

    Attributes:
        source: Source tokens, padded.
        decoder_input: Decoder input: the target shifted right by one position, beginning with BOS.
        target_positions: Positions of the real (non-padding) target tokens in the flattened (B, T).
        targets: The real target tokens, row by row, including EOS.
    """

    source: Int[Tensor, "B S"]
    decoder_input: Int[Tensor, "B T"]
    target_positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]


def to_device(batch: PaddedBatch, device: torch.device) -> TokenBatch:
    """Convert a batch to tensors on ``device``, without waiting for the copy.

    Real targets are selected on the host, because selecting them with a mask on a GPU would make the host wait for the
    result.
    """
    target_positions = np.flatnonzero(batch.target != PAD)

    def moved(array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    target = moved(batch.target)
    return TokenBatch(
        source=moved(batch.source),
        decoder_input=F.pad(target[:, :-1], (1, 0), value=BOS),
        target_positions=moved(target_positions),
        targets=moved(batch.target.reshape(-1)[target_positions]),
    )


@dataclass(frozen=True)
class StepBatches:
    """The micro-batches of one step that this process computes.

    Attributes:
        micro_batches: Micro-batches, keyed by index in the whole step. The index is used to seed dropout.
        num_source_tokens: Number of real source tokens in the whole step, over all processes.
        num_target_tokens: Number of real target tokens in the whole step, over all processes.
        next_epoch: Epoch of the next step, counted from 0.
        next_batch: Position of the first batch of the next step in its epoch (:class:`EpochPlan`).
        has_global_counts: Whether the numbers of tokens refer to the whole step. Otherwise they refer only to
            ``micro_batches``, because the number of targets in a batch is unknown until it is read.
    """

    micro_batches: dict[int, TokenBatch]
    num_source_tokens: int
    num_target_tokens: int
    next_epoch: int
    next_batch: int
    has_global_counts: bool = True

    def with_global_counts(self, sum_over_processes: Callable[[list[int]], list[int]]) -> StepBatches:
        """Return the same batches with the numbers of tokens in the whole step."""
        if self.has_global_counts:
            return self
        sources, targets = sum_over_processes([self.num_source_tokens, self.num_target_tokens])
        return replace(self, num_source_tokens=sources, num_target_tokens=targets, has_global_counts=True)


class BatchStream:
    """An endless iterator over the batches of each step, starting at batch ``first_batch`` of epoch ``first_epoch``."""

    def __init__(
        self,
        dataset: TokenDataset,
        recipe: Recipe,
        device: torch.device,
        *,
        first_epoch: int = 0,
        first_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if world_size > recipe.training.accumulate:
            raise ConfigError(
                f"{world_size} processes share the batches of a step, but training.accumulate = "
                f"{recipe.training.accumulate}; set it to {world_size} or a multiple (and lower data.max_tokens or "
                "optimizer.learning_rate if the step is then too large), or start fewer processes"
            )
        self._dataset, self._recipe, self._device = dataset, recipe, device
        self._epoch, self._batch = first_epoch, first_batch
        self._rank, self._world_size = rank, world_size
        self.epoch_plan = self._plan_epoch()

    def __iter__(self) -> Generator[StepBatches, None, None]:
        while True:
            yield self.next_step()

    def next_step(self) -> StepBatches:
        """Return the batches of the next step."""
        if self._device.index:  # the current device of a new thread is GPU 0
            torch.cuda.set_device(self._device)
        micro_batches, has_global_counts = {}, True
        counts = np.zeros(2, np.int64)
        for index in range(self._recipe.training.accumulate):
            # An epoch may be empty if small corpora have small weights.
            while (location := self.epoch_plan.locate(self._batch)) is None:
                self._epoch, self._batch = self._epoch + 1, 0
                self.epoch_plan = self._plan_epoch()
            pool, number, position = location
            self._batch = position + 1
            has_global_counts &= pool.is_exact
            if pool.is_exact:
                counts += pool.num_tokens[number]
            if index % self._world_size == self._rank:
                batch = self._dataset.batch(pool[number])
                if not pool.is_exact:
                    counts += [np.count_nonzero(side != PAD) for side in (batch.source, batch.target)]
                micro_batches[index] = to_device(batch, self._device)
        sources, targets = counts.tolist()
        return StepBatches(micro_batches, sources, targets, self._epoch, self._batch, has_global_counts)

    def _plan_epoch(self) -> EpochPlan:
        data = self._recipe.data
        return self._dataset.plan_epoch(
            self._recipe.training.seed,
            self._epoch,
            max_batch_tokens=data.max_tokens,
            pool_size=data.pool_size,
            max_batch_examples=self._recipe.max_batch_examples,
            order_version=data.order_version,
        )


def prefetch(get_next: Callable[[], T], num_ahead: int) -> Generator[T, None, None]:
    """Call ``get_next`` repeatedly in a thread, and yield its results.

    Up to ``num_ahead`` results are computed in advance. On a GPU, batches are thus on the device before they are
    needed. If a call of ``get_next`` fails, the error is raised when its result would be yielded. The thread ends when
    the generator is closed.
    """
    with ThreadPoolExecutor(1, "headway-prefetch") as thread:
        pending = deque(thread.submit(get_next) for _ in range(num_ahead))
        try:
            while True:
                pending.append(thread.submit(get_next))
                yield pending.popleft().result()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
