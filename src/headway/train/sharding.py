"""Weights, gradients and moments in shards, one for each process: PyTorch's FSDP2 (Zhao et al. 2023).

A checkpoint then has, in place of its safetensors files, a folder ``shards`` of torch.distributed.checkpoint, to which
each process writes its own; the names in it are those of the files, behind ``weights/``, ``moments/`` and ``ema/``. Its
metadata are a pickle: resume only from checkpoints of your own. Model folders hold none.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from headway.errors import OutputError
from headway.storage import atomic_write_folder
from headway.train import state
from headway.train.checkpoints import Checkpoints
from headway.train.distributed import World
from headway.train.state import Snapshot

__all__ = ["ShardedCheckpoints", "whole"]


def whole(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights gathered from all processes, in host memory; those that are no shards stay as they are."""
    return {
        name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in weights.items()
    }


class ShardedCheckpoints(Checkpoints):
    """:class:`Checkpoints` whose :meth:`save` all processes call, each with its shards."""

    def __init__(self, world: World, folder: Path, *, keep: int, keep_best: int = 0) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        super().__init__(folder, keep=keep, keep_best=keep_best)
        self._hosts = init_device_mesh("cpu", (world.processes,))
        self._group = dist.new_group(backend="gloo")  # of its own: the thread that writes talks while training does
        self._writers = World(world.device, self._group)

    def _copied(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of this process's parts in host memory, still known as parts of the whole."""
        from torch.distributed.tensor import DTensor, Shard

        # Taking a weight apart (query, key, value) has gathered it: each process keeps its part again.
        shards = {
            name: tensor.redistribute(placements=[Shard(0)]) if isinstance(tensor, DTensor) else tensor
            for name, tensor in tensors.items()
        }
        mine = {name: shard.to_local() if isinstance(shard, DTensor) else shard for name, shard in shards.items()}
        copies = super()._copied(kind, mine)
        for name, shard in shards.items():
            if isinstance(shard, DTensor):
                size, stride = shard.shape, shard.stride()
                copies[name] = DTensor.from_local(
                    copies[name], self._hosts, shard.placements, run_check=False, shape=size, stride=stride
                )
        return copies

    def _put(self, snapshot: Snapshot) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        step = snapshot.progress.step
        path = self._folder / f"step-{step}"
        parts = {"weights": snapshot.weights, "moments": snapshot.moments, "ema": snapshot.ema or {}}
        shards: dict[str, Any] = {
            f"{part}/{name}": tensor for part, each in parts.items() for name, tensor in each.items()
        }
        header = state.header_of(snapshot)
        try:
            with ExitStack() as stack:
                aside = self._writers.on_main(lambda: stack.enter_context(atomic_write_folder(path)))
                save(shards, storage_writer=FileSystemWriter(aside / state.SHARDS), process_group=self._group)

                def finish() -> None:
                    state.write_header(aside, header)
                    stack.close()
                    self._prune(step)

                self._writers.on_main(finish)
        except CheckpointException as error:  # in all processes, whichever it was
            rank, (reason, _) = min(error.failures.items(), key=lambda failure: failure[0])
            raise OutputError(
                f"{path}: process {rank} cannot write its shards ({reason}); what was there before is unchanged"
            ) from None
