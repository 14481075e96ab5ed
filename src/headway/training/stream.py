"""The batches of each optimizer step, starting from any position in the data.

A step takes ``training.accumulate`` micro-batches for any number of processes: rank r takes each micro-batch whose
index is r modulo the number of processes, and reads no other. Therefore neither the order of the data nor the size of a
step depends on the number of processes. The lengths of the examples, from which every process plans the batches, give
the number of targets in the whole step without communication. Only for masked language models, whose targets are known
when a batch is read, do the processes add up their numbers.
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
    """A batch as tensors on the device of the model.

    Attributes:
        source: Source tokens, padded.
        decoder_input: Input of the decoder: the target shifted right by one position, beginning with BOS.
        target_positions: Positions of the real (non-padding) target tokens in the flattened (B, T).
        targets: The real target tokens, row after row, including EOS.
    """

    source: Int[Tensor, "B S"]
    decoder_input: Int[Tensor, "B T"]
    target_positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]


def to_device(batch: PaddedBatch, device: torch.device) -> TokenBatch:
    """Convert a batch to tensors on ``device``, without waiting for the copy.

    Real targets are selected on the host, because selecting by a mask on a GPU would make the host wait for the result.
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
    """This process's micro-batches of one step.

    Attributes:
        micro_batches: The micro-batches, keyed by their index in the whole step. The index seeds their dropout.
        num_source_tokens: Number of real source tokens in the whole step, over all processes.
        num_target_tokens: Number of real target tokens in the whole step, over all processes.
        next_epoch: Epoch of the next step, counted from 0.
        next_batch: Position of the first batch of the next step in its epoch (:class:`EpochPlan`).
        is_counted: Whether the numbers of tokens are those of the whole step. Otherwise they are the numbers of
            ``micro_batches``, because the number of targets in a batch is unknown until it is read.
    """

    micro_batches: dict[int, TokenBatch]
    num_source_tokens: int
    num_target_tokens: int
    next_epoch: int
    next_batch: int
    is_counted: bool = True

    def with_counts(self, sum_over_processes: Callable[[list[int]], list[int]]) -> StepBatches:
        """Return the same batches with the numbers of tokens of the whole step."""
        if self.is_counted:
            return self
        sources, targets = sum_over_processes([self.num_source_tokens, self.num_target_tokens])
        return replace(self, num_source_tokens=sources, num_target_tokens=targets, is_counted=True)


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
        if self._device.index:  # a prefetching thread starts on GPU 0
            torch.cuda.set_device(self._device)
        micro_batches, is_counted = {}, True
        counts = np.zeros(2, np.int64)
        for index in range(self._recipe.training.accumulate):
            # An epoch may be empty if the weights of small corpora are small.
            while (location := self.epoch_plan.locate(self._batch)) is None:
                self._epoch, self._batch = self._epoch + 1, 0
                self.epoch_plan = self._plan_epoch()
            pool, number, position = location
            self._batch = position + 1
            is_counted &= pool.is_exact
            if pool.is_exact:
                counts += pool.num_tokens[number]
            if index % self._world_size == self._rank:
                batch = self._dataset.batch(pool[number])
                if not pool.is_exact:
                    counts += [np.count_nonzero(side != PAD) for side in (batch.source, batch.target)]
                micro_batches[index] = to_device(batch, self._device)
        sources, targets = counts.tolist()
        return StepBatches(micro_batches, sources, targets, self._epoch, self._batch, is_counted)

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

    Up to ``num_ahead`` results are computed in advance. On a GPU, batches then reach the device before they are needed.
    If a call of ``get_next`` fails, the error is raised when its result would be yielded. The thread ends when the
    generator is closed.
    """
    with ThreadPoolExecutor(1, "headway-prefetch") as thread:
        pending = deque(thread.submit(get_next) for _ in range(num_ahead))
        try:
            while True:
                pending.append(thread.submit(get_next))
                yield pending.popleft().result()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
