"""Distributed training: join the processes that torchrun starts, and share results, gradients and decisions.

Each process has a copy of the model and computes its share of a step's micro-batches. DDP (Li et al. 2020) sums the
gradients over all processes during the last backward pass, and divides the sum by the number of processes. Headway's
loss is already divided by the number of target tokens in the whole step, so it is first multiplied by the number of
processes.

Process 0 prepares data, validates and writes files while the other processes wait. Every decision that affects training
is made by process 0 or by all processes together, so that all of them act the same way.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from headway.errors import ConfigError, TrainingError
from headway.hardware import choose_device

T = TypeVar("T")

_TIMEOUT = timedelta(days=7)  # process 0 may tokenize or validate for hours; dead processes are detected without it


class World:
    """The processes of a training job, as seen from the current process.

    ``host_group`` is a process group for data in host memory. None means that there is only one process.
    """

    def __init__(self, device: torch.device, host_group: dist.ProcessGroup | None = None) -> None:
        self.device = device
        self.rank = host_group.rank() if host_group is not None else 0
        self.world_size = host_group.size() if host_group is not None else 1
        self._host = host_group

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, the only process that writes files."""
        return self.rank == 0

    def run_on_main(self, function: Callable[[], T]) -> T:
        """Run ``function`` in process 0 while the other processes wait, and return its result in all processes.

        If ``function`` raises an error, process 0 raises the same error, and the other processes raise a
        :class:`TrainingError` with its message.
        """
        if self._host is None:
            return function()
        outcome: list[Any] = [None, None]  # result and error
        broadcast = partial(dist.broadcast_object_list, src=0, group=self._host)
        if self.is_main:
            try:
                outcome = [function(), None]
            except BaseException as error:
                broadcast([None, TrainingError(f"process 0 failed: {error}")])
                raise
        broadcast(outcome)
        result, failure = outcome
        if failure is not None:
            raise failure
        return cast("T", result)

    def run_on_main_first(self, function: Callable[[], T]) -> T:
        """Run ``function`` in process 0, then in the other processes, which can use the files written by process 0.

        Returns the result of this process.
        """
        results: list[T] = []
        self.run_on_main(lambda: results.append(function()))
        return results[0] if results else function()

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` is set in any process. The hosts communicate without waiting for their devices."""
        if self._host is None:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._host)
        return bool(votes)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of ``value`` over all processes."""
        if self._host is None:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total

    def sum_counts(self, counts: list[int]) -> list[int]:
        """Return the sums of ``counts`` over all processes. The hosts communicate without waiting for their devices."""
        if self._host is None:
            return counts
        totals = torch.tensor(counts)
        dist.all_reduce(totals, group=self._host)
        return totals.tolist()

    def wrap(self, objective: nn.Module, *, find_unused: bool) -> nn.Module:
        """Wrap ``objective`` in DDP, so that its gradients are averaged over all processes.

        ``find_unused`` must be True if some weights may be unused in a forward pass, for example with layer dropout.
        """
        if self._host is None:
            return objective
        with warnings.catch_warnings():
            # Position tables (buffers) grow with each process's longest batch, so they must not be broadcast. The
            # option was renamed after PyTorch 2.6.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            return DistributedDataParallel(
                objective, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=find_unused
            )

    def gradient_sync(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
        """Return a context manager for the forward and backward pass of a micro-batch.

        Gradients are synchronized only in the last micro-batch of a step.
        """
        if isinstance(objective, DistributedDataParallel) and not is_last:
            return objective.no_sync()
        return nullcontext()


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """Join the job that torchrun's environment variables describe, on ``device`` "auto", "cpu" or "cuda".

    If the program has already called ``torch.distributed.init_process_group``, that group is used.

    Raises:
        ConfigError: The environment variables differ from what torchrun sets, or there is no GPU for this process.
        TrainingError: The connection to another process was lost.
    """
    if dist.is_available() and dist.is_initialized():
        yield from _within(_device(device, _variable("LOCAL_RANK", dist.get_rank())))
        return
    rank, processes = _variable("RANK", 0), _variable("WORLD_SIZE", 1)
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ) or not 0 <= rank < processes:
        variables = ", ".join(f"{name} = {os.environ.get(name, 'not set')}" for name in ("RANK", "WORLD_SIZE"))
        raise ConfigError(
            f"{variables}: expected RANK from 0 to WORLD_SIZE - 1, as torchrun sets them; start with `torchrun "
            "--nproc-per-node N -m -- headway train RECIPE`, or unset both to train in one process"
        )
    if processes == 1:
        yield World(_device(device, _variable("LOCAL_RANK", 0)) if "RANK" in os.environ else choose_device(device))
        return
    local_device = _device(device, _variable("LOCAL_RANK", rank))
    try:
        backend = "cpu:gloo,cuda:nccl" if local_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=_clean_store(rank, processes), rank=rank, world_size=processes)
    except (dist.DistError, ValueError) as error:
        raise ConfigError(
            f"process {rank} of {processes} cannot connect to the others ({str(error).splitlines()[0]}); start all "
            "processes with torchrun, which sets MASTER_ADDR and MASTER_PORT to the address of process 0"
        ) from None
    yield from _within(local_device)
    dist.destroy_process_group()  # not after an error, because the other processes must receive the error first


def _clean_store(rank: int, processes: int) -> Store:
    """Return the store for process discovery, without the entries of dead processes.

    torchrun keeps the same store across restarts, so a new process might read entries of a dead process. Each process
    therefore writes a new random name, and uses the prefix with which process 0 replies.
    """
    store, _, _ = next(rendezvous("env://"))
    name = uuid4().hex
    store.set(f"headway/{rank}", name)
    if rank:
        session = store.get(f"headway/{name}").decode()  # waits until process 0 has replied
        store.set(f"headway/{session}/{rank}", "")
        return PrefixStore(session, store)
    missing = list(range(1, processes))
    while missing:
        for other in missing:
            store.set(f"headway/{store.get(f'headway/{other}').decode()}", name)
        time.sleep(0.01)
        missing = [other for other in missing if not store.check([f"headway/{name}/{other}"])]
    return PrefixStore(name, store)


def _within(device: torch.device) -> Iterator[World]:
    """Yield the world of the default process group. On exit, all processes wait for each other."""
    if dist.get_world_size() == 1:
        yield World(device)
        return
    host = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    try:
        yield World(device, host)
        dist.barrier(host)  # process 0 may still be writing, and torchrun ends all processes after the first one exits
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise  # not a lost connection
        raise TrainingError(
            f"process {dist.get_rank()} lost the connection to another process of this job. If that process reported "
            "an error, fix its cause. Run the same command again: training resumes from its last checkpoint"
        ) from error


def _device(name: str, local_rank: int) -> torch.device:
    """Return the GPU of this process, or the CPU."""
    device = choose_device(name)
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"LOCAL_RANK = {local_rank}: each process needs a GPU, but this machine has {torch.cuda.device_count()}; "
            "lower --nproc-per-node, or set training.device = 'cpu'"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _variable(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r}: expected a number, as torchrun sets it") from None
