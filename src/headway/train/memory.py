"""How much memory training takes, told before it starts; and what to do where it is not there.

The peak is in the backward pass of the largest batch. Beside the batch's activations there are then the weights, their
gradients, the optimiser's two moments, a moving average of the weights where one is kept, and the copies that a
checkpoint is written from. All these follow from the number of weights. What the activations take is not modelled but
measured: two and three rows of the largest shape go forward, the bytes that autograd keeps are counted, and since every
row keeps the same, the line through both points gives the rest. Measured peaks of whole steps tell what a byte kept
costs with the temporaries of the backward pass and the gaps between blocks.
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

from headway.data.batching import Batch, Corpora, EpochPlan
from headway.engine.loss import rows_at_a_time
from headway.errors import TrainingError
from headway.hardware import autocast
from headway.text.tokenizer import UNK
from headway.train.objective import LabelObjective, Objective, TokenBatch, to_device
from headway.train.state import moments as moments_of

__all__ = [
    "Estimate",
    "Shape",
    "available_memory",
    "check_memory",
    "estimate_memory",
    "largest_shapes",
    "out_of_memory_explained",
]

_GIB = 1 << 30
_LOGIT_BYTES = 12  # of each logit that the loss holds at a time, its softmax and its error
# Peak over bytes kept: 1.9 to 2.8 on a CPU, by the resident sizes of small and base models at 2,048 to 12,800 tokens in
# float32 and bfloat16, for the heap fragments. The allocator for a GPU leaves fewer gaps; not measured.
_PEAK_PER_KEPT = {"cpu": 2.2, "cuda": 1.3}
_CERTAIN = 1.5  # estimates and measured peaks lie within this factor of one another


@dataclass(frozen=True)
class Shape:
    """A batch of ``rows`` sources and targets, padded to so many tokens. Shapes are ordered by their tokens."""

    rows: int
    source: int
    target: int

    @classmethod
    def of(cls, batch: TokenBatch) -> Shape:
        """The shape of a batch."""
        (rows, source), target = batch.source.shape, batch.shifted.size(1)
        return cls(rows, source, target)

    def __lt__(self, other: Shape) -> bool:
        return self.rows * (self.source + self.target) < other.rows * (other.source + other.target)

    def __str__(self) -> str:
        return f"{self.rows} rows x ({self.source} source + {self.target} target tokens)"


@dataclass(frozen=True)
class Estimate:
    """Bytes at the peak of a training step, by what they hold, and the batch shape of that step.

    ``held`` of them are allocated already: the weights, and what a resumed run restored.
    """

    shape: Shape
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
        """All together; the program itself and its libraries are not in it."""
        parts = (self.weights, self.gradients, self.optimizer, self.average, self.checkpoint)
        return sum(parts) + self.activations + self.logits

    def __str__(self) -> str:
        fixed = self.weights + self.gradients + self.optimizer + self.average + self.checkpoint
        return (
            f"about {self.total / _GIB:.1f} GiB: {fixed / _GIB:.1f} for weights, optimizer and checkpoints, "
            f"{(self.activations + self.logits) / _GIB:.1f} for a batch of {self.shape}"
        )


def largest_shapes(corpora: Corpora, plan: EpochPlan) -> list[Shape]:
    """The batches of a plan that may take the most memory, one or two.

    They are the largest by tokens, of which the decoder's cost about twice, and by pairs of tokens, which attention
    compares.
    """
    if not len(plan):
        return []
    starts, ends = plan.bounds[np.argsort(plan.bounds[:, 0])].T
    rows = ends - starts
    source, target = (
        np.maximum.reduceat(corpora.lengths(side, plan.segmentation)[plan.order], starts).astype(np.int64)
        for side in ("source", "target")
    )
    costs = (rows * (source + 2 * target), rows * (source**2 + target**2 + source * target))
    return [
        Shape(int(rows[index]), int(source[index]), int(target[index]))
        for index in dict.fromkeys(int(cost.argmax()) for cost in costs)
    ]


def estimate_memory(
    objective: Objective | LabelObjective,
    optimizer: torch.optim.Optimizer,
    shapes: list[Shape],
    precision: str,
    *,
    average: bool = False,
) -> Estimate:
    """The peak of a training step over the most expensive of ``shapes``; without any, what does not depend on them.

    ``objective`` is not compiled: that would take minutes for each of them. ``average`` is whether a moving average of
    the weights is kept. Random numbers are left as they were.
    """
    parameters = list(objective.model.parameters())
    device = parameters[0].device
    weights = sum(parameter.nbytes for parameter in parameters)
    trained = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
    moments = 0 if isinstance(optimizer, torch.optim.Adafactor) else 2 * trained  # its rows and columns are little
    ema = weights if average else 0
    restored = sum(tensor.nbytes for tensor in moments_of(objective.model, optimizer).values())
    kept = {shape: _activations(objective, shape, device, precision) for shape in shapes} or {Shape(0, 0, 0): 0}
    shape = max(kept, key=kept.__getitem__)
    vocabulary = objective.model.projection.weight.size(0)
    return Estimate(
        shape=shape,
        weights=weights,
        gradients=trained,
        optimizer=moments,
        average=ema,
        checkpoint=weights + moments + ema if device.type == "cpu" else 0,  # copied to the host's memory
        activations=int(kept[shape] * _PEAK_PER_KEPT.get(device.type, 1.3)),
        logits=min(shape.rows * shape.target, rows_at_a_time(device.type)) * vocabulary * _LOGIT_BYTES,
        held=weights + ema + restored,
    )


def _activations(objective: Objective | LabelObjective, shape: Shape, device: torch.device, precision: str) -> int:
    """Bytes that autograd keeps for the backward pass of a batch."""
    if shape.rows <= 3:
        return _kept(objective, shape, device, precision)
    # One row alone is laid out differently.
    two, three = (_kept(objective, replace(shape, rows=rows), device, precision) for rows in (2, 3))
    return two + (shape.rows - 2) * (three - two)


def _kept(objective: Objective | LabelObjective, shape: Shape, device: torch.device, precision: str) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    kept: dict[int, Tensor] = {}  # held, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    source = np.full((shape.rows, shape.source), UNK, np.int64)
    target = np.ones((shape.rows, shape.target), np.int64)  # a token, or the first label
    batch = to_device(Batch(source, target), device)
    training = objective.training
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        autocast(device, precision),
    ):
        objective.train()(batch)
    objective.train(training)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in own)


def check_memory(estimate: Estimate, available: int | None) -> str | None:
    """A warning where ``estimate`` is more than what there is; far more is a :class:`TrainingError`.

    ``available`` is how many bytes can be had beside those held already; None: nothing is known.
    """
    if available is None or estimate.total <= available + estimate.held:
        return None
    room = available + estimate.held
    message = (
        f"training needs {estimate}, but there are {room / _GIB:.1f} GiB; lower data.max_tokens and raise "
        "training.accumulate in turn, or choose a smaller model"
    )
    if estimate.total > _CERTAIN * room:
        raise TrainingError(message)
    return message


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process can still get: of the GPU, or of the machine within its control group's limit, which it
    shares with the other processes that torchrun has started there."""
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
    """What each control group (version 2) above this process has left; pages that only cache files count as free."""
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
def out_of_memory_explained(shape: Shape) -> Iterator[None]:
    """Turn the exhaustion of memory into a :class:`TrainingError` that names the batch's shape and what to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        ours = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not ours and "can't allocate memory" not in str(error):  # PyTorch's words for a CPU
            raise
        raise TrainingError(
            f"out of memory at a batch of {shape}; lower data.max_tokens (and raise training.accumulate in turn: the "
            "step stays as large), data.filter.max_length or the model's sizes, or end what else uses the device. "
            "The last checkpoint is as it was"
        ) from None
