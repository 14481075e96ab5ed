"""Compare the training speed and FLOP utilization of Headway and other toolkits on the same models and tokens.

    python benchmarks/training.py --data FOLDER     # FOLDER contains Multi30k: train.de, train.en, val.de, val.en

For each model, Headway (in bfloat16 if the hardware supports it) is compared with Headway in float32, with Headway with
the paper's blocks, with a plain loop over ``torch.nn.Transformer`` in float32 on Headway's batches, and with the peers
in their own environments (``peers.py``). ``trainees.py`` describes the model, ``contest.py`` defines the rates, and
``flops.py`` defines model FLOP. Headway and one of the other contestants take turns in training, each in its own
process. Before each round, the machine's peak rate for each data type is measured: the best rate of a 2048-cube and of
the model's own matrix products. Rates are medians over the rounds. Ratios and shares of the peak are computed within a
round, and their medians are reported. With ``--sweep``, Headway and each peer first search for their fastest settings
in short runs. All contestants use the same number of threads, and all may keep freed memory for the next step.
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
from contest import ContestantError, Running, Settings, Speed, Trial, measure_once, sweep
from flops import Product, best_product
from rich.console import Console
from rich.table import Table
from trainees import prepare_corpus, sizes

from headway.hardware import choose_device, has_fast_bfloat16, processor_name
from headway.models.transformer import TransformerConfig

TOKENS_PER_STEP = 3_400  # real tokens per side in a batch of 4,096: the rows of the model's own products


@dataclass(frozen=True)
class Contestant:
    """A toolkit to measure: its data type, a function that starts it, and the axes of its sweep."""

    name: str
    precision: str
    begin: Callable[[Settings], Running]
    start: Settings
    axes: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Round:
    """A contestant's turn, the first contestant's turn in the same round, and the machine's peak measured before."""

    own: Speed
    first: Speed
    peak: Product


@dataclass(frozen=True)
class Result:
    """One row of the table, and the trials of the sweep before it."""

    model: str
    name: str
    precision: str
    settings: Settings
    tried: tuple[Trial, ...]
    rounds: tuple[Round, ...]
    failure: str = ""


@dataclass(frozen=True)
class Place:
    """Folders and threads that all contestants use."""

    data: Path
    workdir: Path
    threads: int


def begin_trainee(kind: str, precision: str, preset: str, place: Place, settings: Settings) -> Running:
    """Start Headway ("headway"), Headway with the paper's blocks ("paper") or the plain loop ("plain")."""
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
    """Return all contestants. The first one, Headway in its fastest data type, is compared with the others."""
    own_type = "bfloat16" if has_fast_bfloat16(choose_device("cpu")) else "float32"
    batch_sizes = {"max_tokens": peers.BATCH_SIZES}
    listed = [
        Contestant(
            "headway", precision, partial(begin_trainee, "headway", precision, preset, place), Settings(), batch_sizes
        )
        for precision in dict.fromkeys((own_type, "float32"))
    ]
    # These use the batches that are fastest for Headway, so they have no sweep.
    paper = partial(begin_trainee, "paper", own_type, preset, place)
    listed.append(Contestant("headway, the paper's blocks", own_type, paper, Settings(), {}))
    plain = partial(begin_trainee, "plain", "float32", preset, place)
    listed.append(Contestant("torch.nn.Transformer", "float32", plain, Settings(), {}))
    for name, peer in peers.PEERS.items() if with_peers else ():
        if peer.precision.startswith("bfloat16") and own_type == "float32":
            continue  # bfloat16 would be emulated, a hundred times slower
        run = partial(peers.begin_peer, name, preset, place.data, place.workdir, place.threads)
        listed.append(Contestant(f"{peer.toolkit} {peer.version}", peer.precision, run, peer.start, peer.axes))
    return listed


def run_contest(
    preset: str,
    entries: list[Contestant],
    measure_peaks: Callable[[], dict[str, Product]],
    *,
    rounds: int,
    seconds: float,
    sweep_seconds: float | None,
    console: Console,
) -> list[Result]:
    """Run the first contestant alternately with each of the others, all with their best settings."""
    fittest: list[tuple[Contestant, Settings, list[Trial]]] = []
    for entry in entries:
        start = entry.start if entry.axes else fittest[0][1]  # contestants without a sweep use Headway's settings
        tried: list[Trial] = []
        if sweep_seconds and entry.axes:
            best, tried = sweep(partial(measure_once, entry.begin, sweep_seconds), entry.axes, start)
            start = best.settings
            console.print(peers.trials_table(f"{preset} model, {entry.name}, {entry.precision}: sweep", tried))
        fittest.append((entry, start, tried))
    (first, settings, first_tried), *others = fittest
    results: list[Result] = []
    all_rounds: list[Round] = []
    with first.begin(settings) as running:
        running.turn(0.0)  # excludes start-up from the rounds; a contestant is only stopped after its first turn
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
    """Measure the fastest matrix product of each data type on this machine."""
    device = choose_device("cpu")
    torch.set_num_threads(threads)
    types = (torch.float32, torch.bfloat16) if has_fast_bfloat16(device) else (torch.float32,)
    return {
        str(dtype).removeprefix("torch."): best_product(dtype, device, config, vocab_size, TOKENS_PER_STEP)
        for dtype in types
    }


def results_table(results: list[Result]) -> Table:
    """Return one model's results. "headway is" compares the first row with each row in target tokens per second."""
    names = ("toolkit", "type", "target tok/s", "source tok/s", "model GFLOP/s", "of peak", "headway is", "peak GiB")
    table = Table(*names, "settings", title=f"{results[0].model} model")
    for result in results:
        if result.failure or not result.rounds:
            table.add_row(result.name, result.precision, *[""] * 6, result.failure or "no other contestant")
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
    workdir: Annotated[Path, typer.Option(help="Folder for the peers' environments.")] = peers.ROOT / ".peers",
    models: Annotated[str, typer.Option(help="Presets, separated by commas.")] = "base,small",
    rounds: Annotated[int, typer.Option(help="Number of rounds of Headway and each other contestant.")] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a turn in seconds.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Processor threads of each contestant.")] = 2,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also run the other toolkits.")] = True,
    sweep_seconds: Annotated[
        float | None, typer.Option("--sweep", help="Search for the fastest settings, with this many seconds per trial.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure all contestants and print a table for each model."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that stopped contestants are ended
    place = Place(data.resolve(), workdir.resolve(), threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine = f"{processor_name()}, {threads} threads, PyTorch {version('torch')}, Python {platform.python_version()}"
    command = f"python benchmarks/training.py {shlex.join(sys.argv[1:])}"
    console.print(f"{date.today()}: {machine}, Headway {version('headway')}\n{command}")
    figures = []
    for preset in models.split(","):
        setting, prepared = prepare_corpus(place.data, place.workdir, preset)
        results = run_contest(
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
                f"peak of {precision}: {rate / 1e9:,.0f} GFLOP/s (median); {best.flop_per_s / 1e9:,.0f} (best, {best})"
            )
        figures += [asdict(result) for result in results]
        if output is not None:
            header = {"date": str(date.today()), "machine": machine, "command": command}
            output.write_text(json.dumps({**header, "results": figures}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
