"""An estimate of the memory that training needs, made before it starts.

The peak is in the backward pass of the largest batch. Besides the activations, memory then contains the weights, their
gradients, the optimizer's two moments, the moving average of the weights, and the copies that a checkpoint is written
from. All of these follow from the number of weights. The activations are measured: a forward pass of two rows and one
of three rows of the largest shape count the bytes that autograd saves, and the line through both points gives the rest,
since every row saves the same. A factor from measured peaks of whole steps accounts for temporaries of the backward
pass and for fragmentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.data.batching import EpochPlan, PaddedBatch, TokenDataset
from headway.engine.loss import rows_at_a_time
from headway.errors import TrainingError
from headway.hardware import autocast
from headway.text.tokenizer import UNK
from headway.train.snapshot import moments as moments_of
from headway.train.stream import TokenBatch, to_device
from headway.train.task import Objective

__all__ = [
    "BatchShape",
    "Estimate",
    "available_memory",
    "check_memory",
    "estimate_memory",
    "explain_out_of_memory",
    "largest_shapes",
]

_GIB = 1 << 30
_LOGIT_BYTES = 12  # per logit that the loss keeps at a time: the logit, its softmax and its error
# Peak memory over saved activations: 1.9 to 2.8 on a CPU, where the heap fragments (resident sizes of small and base
# models at 2,048 to 12,800 tokens in float32 and bfloat16). The GPU allocator fragments less; not measured.
_PEAK_PER_SAVED = {"cpu": 2.2, "cuda": 1.3}
_ACCURACY = 1.5  # estimates and measured peaks differ at most by this factor


@dataclass(frozen=True)
class BatchShape:
    """The size of a batch: rows, and padded lengths of source and target. Ordered by the number of tokens."""

    rows: int
    source: int
    target: int

    @classmethod
    def of(cls, batch: TokenBatch) -> BatchShape:
        """Return the shape of a batch."""
        (rows, source), target = batch.source.shape, batch.shifted.size(1)
        return cls(rows, source, target)

    def __lt__(self, other: BatchShape) -> bool:
        return self.rows * (self.source + self.target) < other.rows * (other.source + other.target)

    def __str__(self) -> str:
        return f"{self.rows} rows x ({self.source} source + {self.target} target tokens)"


@dataclass(frozen=True)
class Estimate:
    """Bytes at the peak of a training step by their use, and the batch shape of that step.

    ``held`` bytes of them are already allocated: the weights, and what a resumed run has restored.
    """

    shape: BatchShape
    weights: int
    gradients: int
    optimizer: int
    average: int
    checkpoint: int
    activations: int
    logits: int
    held: int

    @property
    def total(self) -> int:
        """The sum, without the program itself and its libraries."""
        parts = (self.weights, self.gradients, self.optimizer, self.average, self.checkpoint)
        return sum(parts) + self.activations + self.logits

    def __str__(self) -> str:
        fixed = self.weights + self.gradients + self.optimizer + self.average + self.checkpoint
        return (
            f"about {self.total / _GIB:.1f} GiB: {fixed / _GIB:.1f} for weights, optimizer and checkpoints, "
            f"{(self.activations + self.logits) / _GIB:.1f} for a batch of {self.shape}"
        )


def largest_shapes(dataset: TokenDataset, plan: EpochPlan) -> list[BatchShape]:
    """Return the one or two batches of a plan that may need the most memory.

    These are the largest by tokens (target tokens cost about twice as much as source tokens) and by pairs of tokens,
    which attention compares.
    """
    if not len(plan):
        return []
    starts, ends = plan.bounds[np.argsort(plan.bounds[:, 0])].T
    rows = ends - starts
    source, target = (
        np.maximum.reduceat(dataset.lengths(side, plan.segmentation)[plan.order], starts).astype(np.int64)
        for side in ("source", "target")
    )
    costs = (rows * (source + 2 * target), rows * (source**2 + target**2 + source * target))
    return [
        BatchShape(int(rows[index]), int(source[index]), int(target[index]))
        for index in dict.fromkeys(int(cost.argmax()) for cost in costs)
    ]


def estimate_memory(
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    shapes: list[BatchShape],
    precision: str,
    *,
    average: bool = False,
) -> Estimate:
    """Estimate the peak memory of a training step with the most expensive of ``shapes``.

    Without shapes, the estimate contains only what does not depend on them. ``objective`` must not be compiled: that
    would take minutes for each shape. ``average`` is whether there is a moving average of the weights. Random states
    are restored.
    """
    parameters = list(objective.model.parameters())
    device = parameters[0].device
    weights = sum(parameter.nbytes for parameter in parameters)
    trained = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
    moments = 0 if isinstance(optimizer, torch.optim.Adafactor) else 2 * trained  # its rows and columns are small
    ema = weights if average else 0
    restored = sum(tensor.nbytes for tensor in moments_of(objective.model, optimizer).values())
    saved = {shape: _activations(objective, shape, device, precision) for shape in shapes} or {BatchShape(0, 0, 0): 0}
    shape = max(saved, key=saved.__getitem__)
    vocabulary = objective.model.projection.weight.size(0)
    return Estimate(
        shape=shape,
        weights=weights,
        gradients=trained,
        optimizer=moments,
        average=ema,
        checkpoint=weights + moments + ema if device.type == "cpu" else 0,  # copied to the host's memory
        activations=int(saved[shape] * _PEAK_PER_SAVED.get(device.type, 1.3)),
        logits=min(shape.rows * shape.target, rows_at_a_time(device.type)[0]) * vocabulary * _LOGIT_BYTES,
        held=weights + ema + restored,
    )


def _activations(objective: Objective, shape: BatchShape, device: torch.device, precision: str) -> int:
    """Return the bytes that autograd saves for the backward pass of a batch."""
    if shape.rows <= 3:
        return _saved_bytes(objective, shape, device, precision)
    # A single row has another memory layout.
    two, three = (_saved_bytes(objective, replace(shape, rows=rows), device, precision) for rows in (2, 3))
    return two + (shape.rows - 2) * (three - two)


def _saved_bytes(objective: Objective, shape: BatchShape, device: torch.device, precision: str) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    saved: dict[int, Tensor] = {}  # keeps the tensors alive, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    source = np.full((shape.rows, shape.source), UNK, np.int64)
    target = np.ones((shape.rows, shape.target), np.int64)  # a token, or the first label
    batch = to_device(PaddedBatch(source, target), device)
    training = objective.training
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        autocast(device, precision),
    ):
        objective.train()(batch)
    objective.train(training)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in own)


def check_memory(estimate: Estimate, available: int | None) -> str | None:
    """Return a warning if ``estimate`` exceeds the memory, or raise :class:`TrainingError` if it does so by far.

    ``available`` is the number of bytes that can still be allocated; None if unknown.
    """
    if available is None or estimate.total <= available + estimate.held:
        return None
    room = available + estimate.held
    message = (
        f"training needs {estimate}, but there are {room / _GIB:.1f} GiB; lower data.max_tokens (and raise "
        "training.accumulate to keep the step size), or choose a smaller model"
    )
    if estimate.total > _ACCURACY * room:
        raise TrainingError(message)
    return message


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still allocate, on the GPU or in host memory; None if unknown.

    Host memory is limited by the control group and shared with the other processes that torchrun has started.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [_available(Path("/proc/meminfo")), *_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    found = min((each for each in known if each is not None), default=None)
    return None if found is None else found // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _available(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _group_limits(membership: Path, root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group (version 2) above this process; file caches count as free."""
    try:
        own = next(line[4:] for line in membership.read_text().splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return
    inner = [root / own, *(root / own).parents]
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
def explain_out_of_memory(shape: BatchShape) -> Iterator[None]:
    """Turn out-of-memory errors into a :class:`TrainingError` that names the batch shape and what to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        ours = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not ours and "can't allocate memory" not in str(error):  # PyTorch's message on a CPU
            raise
        raise TrainingError(
            f"out of memory at a batch of {shape}; lower data.max_tokens (and raise training.accumulate to keep the "
            "step size), data.filter.max_length or the model size, or end other programs on the device. The last "
            "checkpoint is unchanged"
        ) from None
