"""How fast does Headway train, and how near the machine's limit, beside other toolkits on the same models and tokens?

    python benchmarks/training.py --data FOLDER        # FOLDER holds Multi30k: train.de, train.en, val.de, val.en

For each model, one after the other, each in a process of its own: Headway (bfloat16 where the hardware has it, and
float32), a plain loop over ``torch.nn.Transformer`` in float32 on Headway's own batches, and the peers in environments
of their own (``peers.py``). ``trainees.py`` says what the model is, ``contest.py`` what a rate is, ``flops.py`` what
model FLOP are. The peak of a type is the best rate of any matrix product tried, a 2048-cube and the model's own shapes,
before the contestants ran and after. With ``--sweep``, Headway and each peer first look for their fastest settings in
short runs. All of them compute in as many threads as asked, and all may keep freed memory for the next step.
"""

import json
import platform
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import peers
import torch
import typer
from contest import Settings, Speed, Trial, attempt, speed, sweep, watch
from flops import Product, best_product
from rich.console import Console
from rich.table import Table
from trainees import prepare_corpus, sizes

from headway.hardware import choose_device, computes_bfloat16, processor_name

TOKENS_A_STEP = 3_400  # real ones of a side in a batch of 4,096: the rows of the model's own products


@dataclass(frozen=True)
class Contestant:
    """Who trains, in which type, how: ``run(seconds, settings)``; and what its sweep may vary."""

    name: str
    precision: str
    run: Callable[[float, Settings], Speed]
    start: Settings
    axes: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Result:
    """One line of the table, and what the sweep before it tried."""

    model: str
    name: str
    precision: str
    trial: Trial
    tried: tuple[Trial, ...]


@dataclass(frozen=True)
class Place:
    """Where the contest is held."""

    data: Path
    workdir: Path
    threads: int


def run_trainee(kind: str, precision: str, preset: str, place: Place, seconds: float, settings: Settings) -> Speed:
    """Train Headway ("headway", with the paper's blocks "paper") or the plain loop ("plain") for ``seconds``."""
    setting, prepared = prepare_corpus(place.data, place.workdir, preset)
    options = {
        "data": place.data,
        "workdir": place.workdir,
        "preset": preset,
        "kind": kind,
        "precision": precision,
        "max-tokens": settings.max_tokens,
        "pool-size": settings.pool_size,
    }
    command = [sys.executable, str(peers.ROOT / "trainees.py"), *(f"--{key}={value}" for key, value in options.items())]
    log = place.workdir / f"{kind}.log"
    steps, peak = watch(command, log, seconds, place.threads, keep_freed_memory=settings.keep_freed_memory)
    return speed(steps, peak, sizes(setting), prepared.source_tokenizer.vocab_size)


def run_peer(name: str, preset: str, place: Place, seconds: float, settings: Settings) -> Speed:
    """Train a peer for ``seconds`` after the warm-up."""
    return peers.run_peer(name, preset, settings, place.data, place.workdir, seconds, place.threads)


def contestants(preset: str, place: Place, *, with_peers: bool) -> list[Contestant]:
    """Headway in its fastest type first; everybody else is compared with it."""
    own_type = "bfloat16" if computes_bfloat16(choose_device("cpu")) else "float32"
    batch_sizes = {"max_tokens": peers.BATCH_SIZES}
    listed = [
        Contestant(
            "headway", precision, partial(run_trainee, "headway", precision, preset, place), Settings(), batch_sizes
        )
        for precision in dict.fromkeys((own_type, "float32"))
    ]
    # On Headway's own batches: nothing to search.
    paper = partial(run_trainee, "paper", own_type, preset, place)
    listed.append(Contestant("headway, the paper's blocks", own_type, paper, Settings(), {}))
    plain = partial(run_trainee, "plain", "float32", preset, place)
    listed.append(Contestant("torch.nn.Transformer", "float32", plain, Settings(), {}))
    for name, peer in peers.PEERS.items() if with_peers else ():
        if peer.precision.startswith("bfloat16") and own_type == "float32":
            continue  # emulated, a hundred times slower
        run = partial(run_peer, name, preset, place)
        listed.append(Contestant(f"{peer.toolkit} {peer.version}", peer.precision, run, peer.start, peer.axes))
    return listed


def hold(
    preset: str, entries: list[Contestant], seconds: float, sweep_seconds: float | None, console: Console
) -> list[Result]:
    """Run all contestants on one model, each with its best settings."""
    results: list[Result] = []
    for entry in entries:
        start = entry.start if entry.axes else results[0].trial.settings  # the plain loop's are Headway's
        tried: list[Trial] = []
        if sweep_seconds and entry.axes:
            best, tried = sweep(partial(entry.run, sweep_seconds), entry.axes, start)
            start = best.settings
            console.print(peers.trials_table(f"{preset} model, {entry.name}, {entry.precision}: sweep", tried))
        trial = attempt(partial(entry.run, seconds), start)
        results.append(Result(preset, entry.name, entry.precision, trial, tuple(tried)))
    return results


def peaks(preset: str, place: Place) -> dict[str, Product]:
    """The fastest matrix product of each type on this machine, now."""
    setting, prepared = prepare_corpus(place.data, place.workdir, preset)
    device, vocab_size = choose_device("cpu"), prepared.source_tokenizer.vocab_size
    torch.set_num_threads(place.threads)
    types = (torch.float32, torch.bfloat16) if computes_bfloat16(device) else (torch.float32,)
    return {
        str(dtype).removeprefix("torch."): best_product(dtype, device, sizes(setting), vocab_size, TOKENS_A_STEP)
        for dtype in types
    }


def results_table(results: list[Result], limits: dict[str, Product]) -> Table:
    """One model's results; "headway is" compares target tokens per second with the first line's."""
    names = ("toolkit", "type", "target tok/s", "source tok/s", "model GFLOP/s", "of peak", "headway is", "peak GiB")
    table = Table(*names, "settings", title=f"{results[0].model} model")
    first = results[0].trial.speed
    for result in results:
        found = result.trial.speed
        if found is None or first is None:
            table.add_row(result.name, result.precision, *[""] * 6, result.trial.failure)
            continue
        table.add_row(
            result.name,
            result.precision,
            f"{found.target_tokens_per_s:,.0f}",
            f"{found.source_tokens_per_s:,.0f}",
            f"{found.model_flop_per_s / 1e9:,.0f}",
            f"{found.model_flop_per_s / limits[result.precision].flop_per_s:.0%}",
            f"{first.target_tokens_per_s / found.target_tokens_per_s:.1f} x",
            f"{found.peak_bytes / 2**30:.2f}",
            str(result.trial.settings),
        )
    return table


def main(
    data: Annotated[Path, typer.Option(help="Multi30k: train.de, train.en, val.de, val.en.")],
    workdir: Annotated[Path, typer.Option(help="Where the peers' environments are made.")] = peers.ROOT / ".peers",
    models: Annotated[str, typer.Option(help="Presets, with commas between.")] = "base,small",
    seconds: Annotated[float, typer.Option(help="Steady state measured for each contestant.")] = 60.0,
    threads: Annotated[int, typer.Option(help="Processor threads for each.")] = 2,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also run the other toolkits.")] = True,
    sweep_seconds: Annotated[
        float | None, typer.Option("--sweep", help="Seconds for each trial of a search for the fastest settings.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure all and print a table for each model."""
    place = Place(data.resolve(), workdir.resolve(), threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine = f"{processor_name()}, {threads} threads, PyTorch {version('torch')}, Python {platform.python_version()}"
    command = f"python benchmarks/training.py {shlex.join(sys.argv[1:])}"
    console.print(f"{date.today()}: {machine}, Headway {version('headway')}\n{command}")
    figures = []
    for preset in models.split(","):
        before = peaks(preset, place)
        results = hold(preset, contestants(preset, place, with_peers=with_peers), seconds, sweep_seconds, console)
        after = peaks(preset, place)
        limits = {dtype: max(before[dtype], after[dtype], key=lambda product: product.flop_per_s) for dtype in before}
        console.print(results_table(results, limits))
        for dtype, product in limits.items():
            console.print(f"peak of {dtype}: {product.flop_per_s / 1e9:,.0f} GFLOP/s, of {product}")
        figures.append(
            {
                "model": preset,
                "peaks": {dtype: asdict(product) for dtype, product in limits.items()},
                "results": [asdict(result) for result in results],
            }
        )
    if output is not None:
        header = {"date": str(date.today()), "machine": machine, "command": command, "seconds": seconds}
        output.write_text(json.dumps({**header, "models": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
