"""Weights, gradients and moments in shards, one for each process: PyTorch's FSDP2 (Zhao et al. 2023).

A checkpoint then has, in place of its safetensors files, a folder ``shards`` of torch.distributed.checkpoint, to which
each process writes its own; the names in it are those of the files, behind ``weights/``, ``moments/`` and ``ema/``. Its
metadata are a pickle: resume only from checkpoints of your own. Model folders hold none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.bundle import named_weights
from headway.errors import OutputError
from headway.storage import replaced_folder
from headway.train import state
from headway.train.checkpoints import Checkpoints, copies_done
from headway.train.distributed import World
from headway.train.state import Progress, Snapshot

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

    def save(
        self,
        progress: Progress,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        ema: Mapping[str, Tensor] | None = None,
        score: float | None = None,
        regular: bool = True,
        counted: bool = True,
    ) -> None:
        """Copy this process's shards to host memory now, and write them behind the scenes."""
        self.wait()
        parts = {"weights": named_weights(model), "moments": state.moments(model, optimizer), "ema": ema or {}}
        shards = {f"{part}/{name}": tensor for part, each in parts.items() for name, tensor in each.items()}
        header = state.header_of(Snapshot(replace(progress), {}, {}, score=score, regular=regular, counted=counted))
        arguments = (progress.step, self._copied_shards(shards), header, copies_done())
        self._writer = threading.Thread(target=self._write_shards, args=arguments, name="checkpoint")
        self._writer.start()

    def _copied_shards(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Copies of this process's parts in host memory, still known as parts of the whole."""
        from torch.distributed.tensor import DTensor, Shard

        # Taking a weight apart (query, key, value) has gathered it: each process keeps its part again.
        shards = {
            name: tensor.redistribute(placements=[Shard(0)]) if isinstance(tensor, DTensor) else tensor
            for name, tensor in tensors.items()
        }
        mine = {name: shard.to_local() if isinstance(shard, DTensor) else shard for name, shard in shards.items()}
        copies: dict[str, Any] = self._copied("shards", mine)
        for name, shard in shards.items():
            if isinstance(shard, DTensor):
                size, stride = shard.shape, shard.stride()
                copies[name] = DTensor.from_local(
                    copies[name], self._hosts, shard.placements, run_check=False, shape=size, stride=stride
                )
        return copies

    def _write_shards(
        self, step: int, shards: dict[str, Any], header: dict[str, Any], copied: torch.cuda.Event | None
    ) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        path = self._folder / f"step-{step}"
        try:
            if copied is not None:
                copied.synchronize()
            with ExitStack() as stack:
                aside = self._writers.on_main(lambda: stack.enter_context(replaced_folder(path)))
                save(shards, storage_writer=FileSystemWriter(aside / state.SHARDS), process_group=self._group)

                def finish() -> None:
                    state.write_header(aside, header)
                    stack.close()
                    self._prune(step)

                self._writers.on_main(finish)
        except CheckpointException as error:  # in all processes, whichever it was
            rank, (reason, _) = min(error.failures.items(), key=lambda failure: failure[0])
            self._error = OutputError(
                f"{path}: process {rank} cannot write its shards ({reason}); what was there before is unchanged"
            )
        except Exception as error:
            self._error = error
