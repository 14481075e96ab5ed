"""Estimate the memory that training needs, before the first step.

Memory use peaks in the backward pass of the largest batch: weights, gradients, the optimizer's moments, the moving
average of the weights, the copy from which a checkpoint is written, and activations. All of these except the
activations follow from the number of weights. The activations are measured: two forward passes, with two and three rows
of the largest shape, count the bytes that autograd saves. Each additional row adds the difference between the two
counts. A factor derived from measured peaks of whole steps accounts for temporary tensors of the backward pass and for
fragmentation.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.data.batching import PaddedBatch, TokenDataset
from headway.data.epoch_plan import EpochPlan
from headway.engine.loss import logit_chunk_sizes
from headway.errors import TrainingError
from headway.hardware import autocast
from headway.text.base import UNK
from headway.training.snapshot import optimizer_moments
from headway.training.stream import TokenBatch, to_device
from headway.training.task import Objective

_GIB = 1 << 30
_LOGIT_BYTES = 12  # bytes per logit in a chunk of the loss: the logit, its softmax and its gradient
# Peak memory divided by saved activations. The CPU value is based on measured ratios of 1.9 to 2.8, which include heap
# fragmentation (resident sizes of small and base models at 2,048 to 12,800 tokens in float32 and bfloat16). The GPU
# value is a guess.
_PEAK_PER_SAVED = {"cpu": 2.2, "cuda": 1.3}
_ACCURACY = 1.5  # estimates differ from measured peaks by at most this factor


@dataclass(frozen=True)
class BatchShape:
    """The shape of a batch: number of rows and padded source and target lengths. Shapes are ordered by number of
    tokens.
    """

    rows: int
    source_length: int
    target_length: int

    @classmethod
    def of(cls, batch: TokenBatch) -> BatchShape:
        """Return the shape of a batch."""
        (rows, source), target = batch.source.shape, batch.decoder_input.size(1)
        return cls(rows, source, target)

    def __lt__(self, other: BatchShape) -> bool:
        sizes = (shape.rows * (shape.source_length + shape.target_length) for shape in (self, other))
        return next(sizes) < next(sizes)

    def __str__(self) -> str:
        return f"{self.rows} rows x ({self.source_length} source + {self.target_length} target tokens)"


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated peak memory use of a training step, in bytes.

    Attributes:
        batch_shape: Shape of the most expensive batch.
        fixed_bytes: Bytes that do not depend on the batch: weights, gradients, moments, and copies of the weights.
        activation_bytes: Bytes for activations, including temporaries of the backward pass.
        logits_bytes: Bytes for the logits of the loss.
        allocated_bytes: The part of ``fixed_bytes`` that is already allocated: the weights, and the restored state of a
            resumed run.
    """

    batch_shape: BatchShape
    fixed_bytes: int
    activation_bytes: int
    logits_bytes: int
    allocated_bytes: int

    @property
    def total_bytes(self) -> int:
        """Total number of bytes, excluding the program itself and its libraries."""
        return self.fixed_bytes + self.activation_bytes + self.logits_bytes

    def __str__(self) -> str:
        return (
            f"about {self.total_bytes / _GIB:.1f} GiB: {self.fixed_bytes / _GIB:.1f} for weights, optimizer and "
            f"checkpoints, {(self.activation_bytes + self.logits_bytes) / _GIB:.1f} for a batch of {self.batch_shape}"
        )


def largest_batch_shapes(
    dataset: TokenDataset, plan: EpochPlan, max_batch_tokens: int, max_batch_examples: int | None = None
) -> list[BatchShape]:
    """Return the shapes of the one or two batches in an epoch that may need the most memory.

    The first is the batch with the most tokens (a target token costs about twice as much as a source token), the second
    is the batch with the most attention scores. Both may be the same batch. If an epoch has several pools, only the
    batches of the first pool and batches of the longest examples are considered.
    """
    if not plan.num_pools:
        return []
    pool = plan.pool(0)
    shapes = np.column_stack([pool.num_rows, pool.max_lengths])
    if plan.num_pools > 1:
        lengths = dataset.longest_examples(pool.segmentation)
        rows = np.maximum(max_batch_tokens // np.maximum(lengths.max(1, initial=1), 1), 1)
        rows = rows if max_batch_examples is None else np.minimum(rows, max_batch_examples)
        shapes = np.concatenate([shapes, np.column_stack([rows, lengths])])
    rows, source, target = shapes.T
    costs = (rows * (source + 2 * target), rows * (source**2 + target**2 + source * target))
    return [BatchShape(*shapes[index].tolist()) for index in dict.fromkeys(int(cost.argmax()) for cost in costs)]


def estimate_memory(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    shapes: list[BatchShape],
    precision: str,
    *,
    has_ema: bool = False,
) -> MemoryEstimate:
    """Estimate the peak memory of a training step with the most expensive of ``shapes``.

    If ``shapes`` is empty, the estimate includes only the memory that does not depend on the batch. Random states are
    preserved.

    Args:
        objective: The training objective. It must not be compiled, because compilation takes minutes for each shape.
        optimizer: The optimizer of the model's weights.
        shapes: Batch shapes, such as the result of :func:`largest_batch_shapes`.
        precision: Precision of matrix products, as in :func:`~headway.hardware.autocast`.
        has_ema: Whether training keeps a moving average of the weights.
    """
    parameters = list(objective.model.parameters())
    device = parameters[0].device
    weights = sum(parameter.nbytes for parameter in parameters)
    trained = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
    moments = _moment_bytes(optimizer)
    ema = weights if has_ema else 0
    checkpoint = weights + moments + ema if device.type == "cpu" else 0  # the copies are in host memory
    shape, activations = BatchShape(0, 0, 0), 0
    for candidate in shapes:
        saved = {}
        # a single row may have a different memory layout
        for rows in (candidate.rows,) if candidate.rows <= 3 else (2, 3):
            source = np.full((rows, candidate.source_length), UNK, np.int64)
            target = np.ones((rows, candidate.target_length), np.int64)  # 1 is a valid token id and a valid label
            batch = to_device(PaddedBatch(source, target), device)
            with saved_activations(objective, precision) as tensors:
                objective(batch)
            saved[rows] = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
        needed = (
            saved[candidate.rows]
            if candidate.rows in saved
            else saved[2] + (candidate.rows - 2) * (saved[3] - saved[2])
        )
        if needed > activations:
            shape, activations = candidate, needed
    vocabulary = objective.model.projection.weight.size(0)
    restored = sum(tensor.nbytes for tensor in optimizer_moments(objective.model, optimizer).values())
    return MemoryEstimate(
        batch_shape=shape,
        fixed_bytes=weights + trained + moments + ema + checkpoint,
        activation_bytes=int(activations * _PEAK_PER_SAVED.get(device.type, 1.3)),
        logits_bytes=min(shape.rows * shape.target_length, logit_chunk_sizes(device.type)[0])
        * vocabulary
        * _LOGIT_BYTES,
        allocated_bytes=weights + ema + restored,
    )


def _moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of the moments in bytes: two per weight, or one for matrices with orthogonal updates."""
    if isinstance(optimizer, torch.optim.Adafactor):  # its moments are small
        return 0
    return sum(
        (1 if group.get("orthogonal") else 2) * parameter.nbytes
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


@contextmanager
def saved_activations(objective: Objective, precision: str) -> Iterator[dict[int, Tensor]]:
    """Yield a dictionary of the tensors (except weights) that autograd saves for the backward pass, keyed by address.

    The ``with`` block runs a training pass of ``objective``. The objective's training mode and the random states are
    restored afterwards.
    """
    parameters = list(objective.parameters())
    device = parameters[0].device
    weights = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    saved: dict[int, Tensor] = {}  # keeps the tensors alive, so that no address is reused

    def save(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage().data_ptr()) not in weights:
            saved[address] = tensor.detach()
        return tensor

    training = objective.training
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor),
        autocast(device, precision),
    ):
        objective.train()
        yield saved
    objective.train(training)


def check_memory(estimate: MemoryEstimate, available_bytes: int | None) -> None:
    """Warn if ``estimate`` exceeds the available memory. Training starts anyway, because an estimate may be too high.

    ``available_bytes`` is the number of bytes that can still be allocated. None means that it is unknown.
    """
    if available_bytes is None or estimate.total_bytes <= (room := available_bytes + estimate.allocated_bytes):
        return
    warnings.warn(
        f"training needs {estimate}, but only {room / _GIB:.1f} GiB are free; lower data.max_tokens (and raise "
        "training.accumulate to keep the step size), or choose a smaller model. The estimate may be off by a factor "
        f"of {_ACCURACY}, so training starts anyway",
        stacklevel=2,
    )


def available_memory(device: torch.device) -> int | None:
    """Return the number of bytes that this process can still allocate on ``device``, or None if it is unknown.

    Host memory may be limited by control groups, and is shared by the processes that torchrun started on this machine.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [_available(Path("/proc/meminfo")), *_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    available = min((limit for limit in known if limit is not None), default=None)
    return None if available is None else available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _available(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _group_limits(membership: Path, root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group (version 2) above this process; file caches count as free."""
    try:
        group = next(line[4:] for line in membership.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return
    inner = [root / group, *(root / group).parents]
    for folder in inner[: inner.index(root) + 1]:
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / "memory.current").read_text()) - int(stat["inactive_file"])
                yield max(int(limit) - used, 0)
        except (OSError, KeyError, ValueError):
            continue


@contextmanager
def explain_out_of_memory(batch_shape: BatchShape) -> Iterator[None]:
    """Convert out-of-memory errors to a :class:`TrainingError` with the batch shape and the settings to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        ours = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not ours and "can't allocate memory" not in str(error):  # PyTorch's message on a CPU
            raise
        raise TrainingError(
            f"out of memory at a batch of {batch_shape}; lower data.max_tokens (and raise training.accumulate to keep "
            "the step size), data.filter.max_length or the model size, or end other programs on the device. The last "
            "checkpoint is unchanged"
        ) from None
