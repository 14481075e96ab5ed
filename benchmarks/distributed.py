"""Measure computation and communication in a training step of several processes, and project the cost on many GPUs.

    python benchmarks/distributed.py                                    # two processes on this machine's CPU (gloo)
    python benchmarks/distributed.py --device cuda --processes 8 --preset big --max-tokens 25000   # NCCL

Each process trains on micro-batches of random tokens. The kinds of steps are measured in turns. The time of a kind is
the lower quartile of its steps, because other load on the machine only adds time; the longest time among the processes
is reported. The gradients have the size of the weights, in float32.

    alone         a step of one process while the others are idle
    together      a step of all processes without gradient exchange: shows how much they slow each other down
    exchanging    a step of all processes with gradient exchange: a training step
    exchange      only the gradient exchange, in buckets of 25 MiB as in PyTorch's DDP
    hidden        the share of the exchange that overlaps with the backward pass: 1 - (exchanging - together) / exchange

The projection is computed, not measured. It prints its assumptions, which are the constants below. In a ring, each GPU
sends and receives 2 (n - 1) / n times the gradients' size (Patarasuk and Yuan 2009) at the rate of the slowest link;
latencies are neglected. The backward pass takes two thirds of a step's computation: at best, the exchange overlaps with
all of it, at worst with none of it.
"""

import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.distributed as dist
import typer
from flops import training_flop
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.multiprocessing.spawn import spawn

from headway.data.batching import PaddedBatch
from headway.engine.accelerate import accelerate, compile_blocks
from headway.hardware import autocast, disable_cudnn_attention, keep_freed_memory, processor_name
from headway.models.registry import blocks_of, build_model
from headway.models.transformer import TransformerConfig
from headway.tasks.translation import TranslationObjective
from headway.training.distributed import World, join_world
from headway.training.optim import OptimizerConfig, clip_and_step, make_optimizer
from headway.training.stream import TokenBatch, to_device

VOCAB_SIZE, LENGTH = 8000, 25  # tokens of a sentence, including its end symbol: about the mean of Multi30k and WMT
BUCKET_BYTES = 25 << 20
WARM_UP = 3  # steps that are not timed

# Assumptions of the projection.
GPU = "H200: 989 TFLOP/s in bf16, of which a model's step reaches 30 % (base) or 45 % (big)"
GPU_FLOP_PER_S, SHARE_OF_PEAK = 989e12, {"base": 0.30, "big": 0.45}
TOKENS = 25_000  # tokens per side, GPU and step
LINKS = {8: ("NVLink, 450 GB/s one way", 450e9), 64: ("network, 400 Gb/s from node to node", 50e9)}


@dataclass(frozen=True)
class Split:
    """Times of the kinds of steps in milliseconds."""

    alone: float
    together: float
    exchanging: float
    exchange: float

    @property
    def hidden(self) -> float:
        """The share of the exchange that overlaps with computation."""
        return 1 - (self.exchanging - self.together) / self.exchange


@dataclass(frozen=True)
class Projection:
    """Times of a step on ``gpus`` in milliseconds, and the efficiency relative to as many single GPUs."""

    preset: str
    gpus: int
    link: str
    gradient_mb: float
    computing: float
    exchange: float
    worst: float
    best: float


def random_batch(max_tokens: int, world: World) -> TokenBatch:
    """Return sentences of 25 tokens on both sides, which differ between processes."""
    rng = np.random.default_rng(world.rank)
    source, target = rng.integers(3, VOCAB_SIZE, (2, max(max_tokens // LENGTH, 1), LENGTH))
    return to_device(PaddedBatch(source, target), world.device)


def measure(rank: int, processes: int, meeting: str, preset: str, max_tokens: int, device: str, steps: int) -> None:
    """Run the measurement in one process; process 0 writes the result into the folder of the file ``meeting``."""
    os.environ["LOCAL_RANK"] = str(rank)
    keep_freed_memory()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=processes)
    with join_world(device) as world:
        torch.manual_seed(1)
        model = accelerate(build_model(TransformerConfig.preset(preset), VOCAB_SIZE, VOCAB_SIZE)).to(world.device)
        plain = TranslationObjective(model, 0.1)
        if world.device.type == "cuda":
            disable_cudnn_attention()
            compile_blocks(blocks_of(model))
        optimizer, batch = make_optimizer(model, OptimizerConfig()), random_batch(max_tokens, world)
        single: dict[str, Callable[[], object]] = {"alone": partial(step, plain, optimizer, batch, world)}
        alone = world.run_on_main(lambda: quartiles_ms(single, steps, world))["alone"]
        shared = world.wrap(plain, find_unused=False)
        size = sum(parameter.numel() for parameter in model.parameters())
        buckets = torch.split(torch.zeros(size, device=world.device), BUCKET_BYTES // 4)

        def shared_step(*, last: bool) -> None:
            with world.gradient_sync(shared, is_last=last):
                step(shared, optimizer, batch, world)

        acts: dict[str, Callable[[], object]] = {
            "together": partial(shared_step, last=False),
            "exchanging": partial(shared_step, last=True),
            "exchange": partial(sum_all, buckets),
        }
        found = quartiles_ms(acts, steps, world, begin=lambda: world.any(False))
        slowest = torch.tensor(list(found.values()), dtype=torch.float64, device=world.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if world.is_main:
            split = Split(alone, *slowest.tolist())
            Path(meeting).with_name("split.json").write_text(json.dumps(asdict(split)))
    dist.destroy_process_group()


def step(objective: nn.Module, optimizer: torch.optim.Optimizer, batch: TokenBatch, world: World) -> None:
    """Run one training step."""
    with autocast(world.device, "auto"):
        loss = objective(batch)
    (loss / batch.targets.numel()).backward()
    clip_and_step(optimizer)
    optimizer.zero_grad()


def sum_all(buckets: tuple[torch.Tensor, ...]) -> None:
    """Sum the buckets over all processes. All transfers are started before the first one is waited for."""
    for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
        work.wait()


def quartiles_ms(
    acts: dict[str, Callable[[], object]], steps: int, world: World, begin: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return the lower quartile of each act's times in this process. The acts run in turn, each after ``begin``."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for number in range(steps + WARM_UP):
        for name, act in acts.items():
            begin()
            start = time.perf_counter()
            act()
            if world.device.type == "cuda":
                torch.cuda.synchronize()
            if number >= WARM_UP:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.quantiles(each, n=4)[0] for name, each in times.items()}


def projection(preset: str, gpus: int) -> Projection:
    """Project a step on ``gpus`` GPUs, each with a batch of ``TOKENS`` tokens per side."""
    config = TransformerConfig.preset(preset)
    with torch.device("meta"):
        model = build_model(config, VOCAB_SIZE, VOCAB_SIZE)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    lengths = np.full(TOKENS // LENGTH, LENGTH)
    flop = training_flop(config, VOCAB_SIZE, lengths, lengths)
    computing = flop / (GPU_FLOP_PER_S * SHARE_OF_PEAK[preset])
    link, rate = LINKS[gpus]
    exchange = 2 * (gpus - 1) / gpus * size / rate
    exposed = max(0.0, exchange - 2 / 3 * computing)
    worst, best = computing / (computing + exchange), computing / (computing + exposed)
    return Projection(preset, gpus, link, size / 1e6, 1000 * computing, 1000 * exchange, worst, best)


def split_table(preset: str, processes: int, max_tokens: int, split: Split) -> Table:
    """Return the table of measured times."""
    table = Table("alone ms", "together ms", "exchanging ms", "exchange ms", "hidden", "speed-up")
    table.title = f"{preset} model, {processes} processes, {max_tokens:,} tokens per side each"
    speed_up = processes * split.alone / split.exchanging
    figures = (split.alone, split.together, split.exchanging, split.exchange)
    table.add_row(*(f"{figure:,.1f}" for figure in figures), f"{split.hidden:.0%}", f"{speed_up:.2f} x")
    return table


def projection_table(projections: list[Projection]) -> Table:
    """Return the table of projected times."""
    columns = ("model", "GPUs", "slowest link", "gradients MB", "computing ms", "exchange ms", "efficiency")
    table = Table(*columns, title="projected, not measured")
    for each in projections:
        table.add_row(
            each.preset,
            str(each.gpus),
            each.link,
            f"{each.gradient_mb:,.0f}",
            f"{each.computing:.1f}",
            f"{each.exchange:.1f}",
            f"{each.worst:.0%} to {each.best:.0%}",
        )
    return table


def main(
    processes: Annotated[int, typer.Option(help="Number of processes, one per GPU.", min=2)] = 2,
    preset: Annotated[str, typer.Option(help="Preset of the model.")] = "small",
    max_tokens: Annotated[int, typer.Option(help="Tokens per side in a process's batch.")] = 1024,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    steps: Annotated[int, typer.Option(help="Number of timed steps of each kind.", min=2)] = 30,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure steps on this machine, project them to GPUs, and print both tables."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, f"{folder}/meeting", preset, max_tokens, device, steps)
        spawn(measure, arguments, nprocs=processes)  # type: ignore[no-untyped-call]
        split = Split(**json.loads((Path(folder) / "split.json").read_text()))
    projections = [projection(name, gpus) for name in SHARE_OF_PEAK for gpus in LINKS]
    hardware = torch.cuda.get_device_name() if device == "cuda" else f"{processor_name()}, {os.cpu_count()} cores"
    machine = f"{hardware}, PyTorch {version('torch')}, Python {platform.python_version()}"
    command = f"python benchmarks/distributed.py {shlex.join(sys.argv[1:])}".strip()
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{date.today()}: {machine}, Headway {version('headway')}\n{command}")
    console.print(split_table(preset, processes, max_tokens, split))
    console.print(f"assumptions: {GPU}; {TOKENS:,} tokens per side for each GPU and step")
    console.print(projection_table(projections))
    if output is not None:
        figures = {"split": {**asdict(split), "hidden": split.hidden}, "assumed": GPU, "tokens": TOKENS}
        figures |= {"projections": [asdict(each) for each in projections]}
        header = {"date": str(date.today()), "machine": machine, "command": command}
        output.write_text(json.dumps({**header, **figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
