"""How fast does Headway train, and how near the machine's limit, beside other toolkits on the same models and tokens?

    python benchmarks/training.py --data FOLDER        # FOLDER holds Multi30k: train.de, train.en, val.de, val.en

For each model: Headway (bfloat16 where the hardware has it) beside Headway in float32, Headway with the paper's blocks,
a plain loop over ``torch.nn.Transformer`` in float32 on Headway's own batches, and the peers in environments of their
own (``peers.py``). ``trainees.py`` says what the model is, ``contest.py`` what a rate is, ``flops.py`` what model FLOP
are. Headway and one of the others train by turns, each in a process of its own, and before each round the machine's
peaks are measured: of a type, the best rate of any matrix product tried, a 2048-cube and the model's own shapes. Rates
are medians over the rounds; ratios and shares of the peak compare what one round measured, and are medians too. With
``--sweep``, Headway and each peer first look for their fastest settings in short runs. All of them compute in as many
threads as asked, and all may keep freed memory for the next step.
"""

import json
import platform
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import peers
import torch
import typer
from contest import ContestantError, Running, Settings, Speed, Trial, alone, sweep
from flops import Product, best_product
from rich.console import Console
from rich.table import Table
from trainees import prepare_corpus, sizes

from headway.hardware import choose_device, computes_bfloat16, processor_name
from headway.models.transformer import TransformerConfig

TOKENS_A_STEP = 3_400  # real ones of a side in a batch of 4,096: the rows of the model's own products


@dataclass(frozen=True)
class Contestant:
    """Who trains, in which type, how it is started, and what its sweep may vary."""

    name: str
    precision: str
    begin: Callable[[Settings], Running]
    start: Settings
    axes: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Round:
    """A contestant's turn, the first contestant's beside it, and the machine's peak in this one's type before."""

    own: Speed
    first: Speed
    peak: Product


@dataclass(frozen=True)
class Result:
    """One line of the table, and what the sweep before it tried."""

    model: str
    name: str
    precision: str
    settings: Settings
    tried: tuple[Trial, ...]
    rounds: tuple[Round, ...]
    failure: str = ""


@dataclass(frozen=True)
class Place:
    """Where the contest is held."""

    data: Path
    workdir: Path
    threads: int


def begin_trainee(kind: str, precision: str, preset: str, place: Place, settings: Settings) -> Running:
    """Start Headway ("headway", with the paper's blocks "paper") or the plain loop ("plain")."""
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
    return Running(
        command,
        place.workdir / f"{kind}-{precision}.log",
        place.threads,
        sizes(setting),
        prepared.tokenizers.source.vocab_size,
        keep_freed_memory=settings.keep_freed_memory,
    )


def contestants(preset: str, place: Place, *, with_peers: bool) -> list[Contestant]:
    """Headway in its fastest type first; everybody else is compared with it."""
    own_type = "bfloat16" if computes_bfloat16(choose_device("cpu")) else "float32"
    batch_sizes = {"max_tokens": peers.BATCH_SIZES}
    listed = [
        Contestant(
            "headway", precision, partial(begin_trainee, "headway", precision, preset, place), Settings(), batch_sizes
        )
        for precision in dict.fromkeys((own_type, "float32"))
    ]
    # On Headway's own batches: nothing to search.
    paper = partial(begin_trainee, "paper", own_type, preset, place)
    listed.append(Contestant("headway, the paper's blocks", own_type, paper, Settings(), {}))
    plain = partial(begin_trainee, "plain", "float32", preset, place)
    listed.append(Contestant("torch.nn.Transformer", "float32", plain, Settings(), {}))
    for name, peer in peers.PEERS.items() if with_peers else ():
        if peer.precision.startswith("bfloat16") and own_type == "float32":
            continue  # emulated, a hundred times slower
        run = partial(peers.begin_peer, name, preset, place.data, place.workdir, place.threads)
        listed.append(Contestant(f"{peer.toolkit} {peer.version}", peer.precision, run, peer.start, peer.axes))
    return listed


def hold(
    preset: str,
    entries: list[Contestant],
    measure_peaks: Callable[[], dict[str, Product]],
    *,
    rounds: int,
    seconds: float,
    sweep_seconds: float | None,
    console: Console,
) -> list[Result]:
    """The first contestant beside each of the others, by turns, all with their best settings."""
    fittest: list[tuple[Contestant, Settings, list[Trial]]] = []
    for entry in entries:
        start = entry.start if entry.axes else fittest[0][1]  # the plain loop's are Headway's
        tried: list[Trial] = []
        if sweep_seconds and entry.axes:
            best, tried = sweep(partial(alone, entry.begin, sweep_seconds), entry.axes, start)
            start = best.settings
            console.print(peers.trials_table(f"{preset} model, {entry.name}, {entry.precision}: sweep", tried))
        fittest.append((entry, start, tried))
    (first, settings, first_tried), *others = fittest
    results: list[Result] = []
    all_rounds: list[Round] = []
    with first.begin(settings) as running:
        running.turn(0.0)  # start-up is no part of a round, and until its first turn ends a contestant does not stand
        for entry, own_settings, tried in others:
            found: list[Round] = []
            failure = ""
            try:
                with entry.begin(own_settings) as other:
                    other.turn(0.0)
                    for _ in range(rounds):
                        limits = measure_peaks()
                        speed = running.turn(seconds)
                        all_rounds.append(Round(speed, speed, limits[first.precision]))
                        found.append(Round(other.turn(seconds), speed, limits[entry.precision]))
            except ContestantError as error:
                failure = str(error)
            results.append(
                Result(preset, entry.name, entry.precision, own_settings, tuple(tried), tuple(found), failure)
            )
    return [
        Result(preset, first.name, first.precision, settings, tuple(first_tried), tuple(all_rounds)),
        *results,
    ]


def peaks(config: TransformerConfig, vocab_size: int, threads: int) -> dict[str, Product]:
    """The fastest matrix product of each type on this machine, now."""
    device = choose_device("cpu")
    torch.set_num_threads(threads)
    types = (torch.float32, torch.bfloat16) if computes_bfloat16(device) else (torch.float32,)
    return {
        str(dtype).removeprefix("torch."): best_product(dtype, device, config, vocab_size, TOKENS_A_STEP)
        for dtype in types
    }


def results_table(results: list[Result]) -> Table:
    """One model's results; "headway is" compares target tokens per second with the first line's."""
    names = ("toolkit", "type", "target tok/s", "source tok/s", "model GFLOP/s", "of peak", "headway is", "peak GiB")
    table = Table(*names, "settings", title=f"{results[0].model} model")
    for result in results:
        if result.failure or not result.rounds:
            table.add_row(result.name, result.precision, *[""] * 6, result.failure or "nobody to take turns with")
            continue
        own = [each.own for each in result.rounds]
        shares = [each.own.model_flop_per_s / each.peak.flop_per_s for each in result.rounds]
        ratios = [each.first.target_tokens_per_s / each.own.target_tokens_per_s for each in result.rounds]
        table.add_row(
            result.name,
            result.precision,
            f"{median(speed.target_tokens_per_s for speed in own):,.0f}",
            f"{median(speed.source_tokens_per_s for speed in own):,.0f}",
            f"{median(speed.model_flop_per_s for speed in own) / 1e9:,.0f}",
            f"{median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})",
            f"{median(ratios):.1f} x ({min(ratios):.1f} to {max(ratios):.1f})",
            f"{max(speed.peak_bytes for speed in own) / 2**30:.2f}",
            str(result.settings),
        )
    return table


def main(
    data: Annotated[Path, typer.Option(help="Multi30k: train.de, train.en, val.de, val.en.")],
    workdir: Annotated[Path, typer.Option(help="Where the peers' environments are made.")] = peers.ROOT / ".peers",
    models: Annotated[str, typer.Option(help="Presets, with commas between.")] = "base,small",
    rounds: Annotated[int, typer.Option(help="How often Headway and each other contestant take their turns.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a turn.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Processor threads for each.")] = 2,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also run the other toolkits.")] = True,
    sweep_seconds: Annotated[
        float | None, typer.Option("--sweep", help="Seconds for each trial of a search for the fastest settings.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure all and print a table for each model."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or contestants would stand for ever
    place = Place(data.resolve(), workdir.resolve(), threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine = f"{processor_name()}, {threads} threads, PyTorch {version('torch')}, Python {platform.python_version()}"
    command = f"python benchmarks/training.py {shlex.join(sys.argv[1:])}"
    console.print(f"{date.today()}: {machine}, Headway {version('headway')}\n{command}")
    figures = []
    for preset in models.split(","):
        setting, prepared = prepare_corpus(place.data, place.workdir, preset)
        results = hold(
            preset,
            contestants(preset, place, with_peers=with_peers),
            partial(peaks, sizes(setting), prepared.tokenizers.source.vocab_size, threads),
            rounds=rounds,
            seconds=seconds,
            sweep_seconds=sweep_seconds,
            console=console,
        )
        console.print(results_table(results))
        for precision in dict.fromkeys(result.precision for result in results):
            found = [each.peak for result in results if result.precision == precision for each in result.rounds]
            best = max(found, key=lambda product: product.flop_per_s)
            rate = median(product.flop_per_s for product in found)
            console.print(
                f"peak of {precision}: {rate / 1e9:,.0f} GFLOP/s; the best {best.flop_per_s / 1e9:,.0f}, of {best}"
            )
        figures += [asdict(result) for result in results]
        if output is not None:
            header = {"date": str(date.today()), "machine": machine, "command": command}
            output.write_text(json.dumps({**header, "results": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
