"""Many devices: the processes that torchrun starts, what they share, and what they agree on.

Each process holds the whole model and computes its share of a step's micro-batches; gradients are summed over all of
them while the last backward pass is still going on (Li et al. 2020, PyTorch Distributed), or each process keeps its
share of weights, gradients and moments only (Rajbhandari et al. 2020, ZeRO stage 3; PyTorch's FSDP2). PyTorch divides
the sum of gradients by the number of processes; ours are of sums over the whole step's target tokens, so the loss is
multiplied by that number first.

Whatever happens once (preparing data, validating, writing) process 0 does, and the others wait for it. What decides the
course is told by process 0 or agreed on, so that all take the same turns.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from headway.errors import ConfigError, TrainingError
from headway.hardware import choose_device

__all__ = ["World", "joined"]

T = TypeVar("T")

_PATIENCE = timedelta(days=7)  # others wait while process 0 tokenises or validates; a dead process is noticed at once


class World:
    """The processes of a job, seen from one of them. Alone, it waits for nobody.

    ``host`` is a group of all processes that exchanges what lies in host memory; None where there is one process.
    """

    def __init__(self, device: torch.device, host: dist.ProcessGroup | None = None) -> None:
        self.device = device
        self.rank = host.rank() if host is not None else 0
        self.processes = host.size() if host is not None else 1
        self._host = host

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which alone writes."""
        return self.rank == 0

    def on_main(self, function: Callable[[], T]) -> T:
        """What ``function`` returns in process 0, where alone it runs while the others wait.

        What it raises there is raised there; the others raise :class:`TrainingError`, which tells what it was.
        """
        if self._host is None:
            return function()
        outcome: list[tuple[T | None, BaseException | None]] = [(None, None)]
        if self.is_main:
            try:
                outcome = [(function(), None)]
            except BaseException as error:
                self._tell([(None, TrainingError(f"process 0 cannot go on: {error}"))])
                raise
        self._tell(outcome)
        result, failure = outcome[0]
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]  # a T where nothing failed

    def _tell(self, message: list[tuple[T | None, BaseException | None]]) -> None:
        dist.broadcast_object_list(message, src=0, group=self._host)

    def main_first(self, function: Callable[[], T]) -> T:
        """What ``function`` returns in this process. Process 0 runs it first, so that the others find things done."""
        results: list[T] = []
        self.on_main(lambda: results.append(function()))
        return results[0] if results else function()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Hosts ask each other; devices are not waited for."""
        if self._host is None:
            return flag
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self._host)
        return bool(votes)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self._host is None:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total

    def shards(self, sharding: str) -> bool:
        """Whether each process holds a share of the weights only: ``sharding`` is "full", and there are several."""
        return sharding == "full" and self.processes > 1

    def spread(self, objective: nn.Module, *, blocks: list[nn.Module] | None, unused: bool) -> nn.Module:
        """``objective`` with its gradients averaged over all processes.

        With ``blocks``, each process keeps its share of the weights only; those of a block are gathered for its passes
        together, and so are those outside of all blocks. Otherwise ``unused`` tells that a pass may leave out weights
        that another process needs (layer dropout).
        """
        if self._host is None:
            return objective
        if blocks is not None:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.processes,))
            for module in (*blocks, objective):
                fully_shard(module, mesh=mesh)
            return objective
        with warnings.catch_warnings():
            # Tables of positions grow with what a process sees. The option has been renamed since PyTorch 2.6.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            return DistributedDataParallel(
                objective, broadcast_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
            )

    def sharing(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch: gradients are exchanged in the ``last`` one of a step only."""
        if isinstance(objective, DistributedDataParallel):
            return nullcontext() if last else objective.no_sync()
        if self._host is not None:
            objective.set_requires_gradient_sync(last)  # type: ignore[operator]  # an FSDPModule
        return nullcontext()


@contextmanager
def joined(device: str) -> Iterator[World]:
    """Join the processes of this job, as torchrun's environment variables tell, on ``device`` "auto", "cpu" or "cuda".

    A program that has called ``torch.distributed.init_process_group`` stays in that group.

    Raises:
        ConfigError: The variables are not what torchrun sets, or this process would have no GPU of its own.
        TrainingError: Another process of the job has gone.
    """
    if dist.is_available() and dist.is_initialized():
        yield from _within(_device(device, _variable("LOCAL_RANK", dist.get_rank())))
        return
    rank, processes = _variable("RANK", 0), _variable("WORLD_SIZE", 1)
    if ("RANK" in os.environ) != ("WORLD_SIZE" in os.environ) or not 0 <= rank < processes:
        found = ", ".join(f"{name} = {os.environ.get(name, 'not set')}" for name in ("RANK", "WORLD_SIZE"))
        raise ConfigError(
            f"{found}: expected RANK from 0 to WORLD_SIZE - 1, as torchrun sets them; start with `torchrun "
            "--nproc-per-node N -m -- headway train RECIPE`, or unset both to train in one process"
        )
    if processes == 1:
        yield World(_device(device, _variable("LOCAL_RANK", 0)) if "RANK" in os.environ else choose_device(device))
        return
    place = _device(device, _variable("LOCAL_RANK", rank))
    try:
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=_clean_store(rank, processes), rank=rank, world_size=processes)
    except (dist.DistError, ValueError) as error:
        raise ConfigError(
            f"process {rank} of {processes} cannot meet the others ({str(error).splitlines()[0]}); start all of them "
            "with torchrun, which sets MASTER_ADDR and MASTER_PORT to where process 0 listens"
        ) from None
    yield from _within(place)
    dist.destroy_process_group()  # not after an error: the one who tells it must not cut off the others before


def _clean_store(rank: int, processes: int) -> Store:
    """The store where processes find each other, without the addresses of processes that have died.

    torchrun keeps one store over all of its restarts, in which a new process may read what a dead one wrote. So each
    puts a name there that was never used before, and goes on under the one that process 0 answers to it.
    """
    store, _, _ = next(rendezvous("env://"))
    name = uuid4().hex
    store.set(f"headway/{rank}", name)
    if rank:
        session = store.get(f"headway/{name}").decode()  # waits for it
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
    """The world of the default group; all leave it together."""
    if dist.get_world_size() == 1:
        yield World(device)
        return
    host = dist.new_group(backend="gloo", timeout=_PATIENCE)
    try:
        yield World(device, host)
        dist.barrier(host)  # process 0 may still be writing: torchrun ends all when one has ended
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        raise TrainingError(
            f"process {dist.get_rank()} has lost the connection to another process of this job; if that has said why "
            "it ended, mend it. Run the same command again: training goes on from its last save"
        ) from error


def _is_lost_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _device(name: str, local_rank: int) -> torch.device:
    """The GPU of this process, or the CPU."""
    device = choose_device(name)
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"LOCAL_RANK = {local_rank}: this machine has {torch.cuda.device_count()} GPUs, one for each process; "
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
