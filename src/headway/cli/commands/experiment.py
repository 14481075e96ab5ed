"""``headway experiment``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.errors import ConfigError, HeadwayError
from headway.experiments import EXPERIMENT_NAMES, load_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.experiments.experiment import Experiment, ExperimentRecord, Settings

GROUP = CommandGroup.UNDERSTAND
_NAME_HELP = (
    f"One of: {', '.join(EXPERIMENT_NAMES)}; or all; or pool, which trains the models that the experiment choices "
    "compares or, without --data, lists them; or report, which judges and draws the results in the output folder."
)


def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME|all|pool|report", help=_NAME_HELP)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output folder for the report, figures and numbers.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Use small synthetic data instead of --data. All experiments together take a few minutes."
        ),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="Without --quick: a folder that contains corpora such as multi30k.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of repetitions of experiments that depend on chance.", min=1)] = 3,
    device: Annotated[
        options.Device,
        typer.Option("--device", help="Device to use. auto: a GPU if there is one; with --quick always the CPU."),
    ] = "auto",
) -> None:
    """Test claims about the Transformer by experiment. Prints a verdict on each claim and writes an HTML report.

    Running the same command again resumes: existing measurements are reused. To start from scratch, remove the output
    folder.
    """
    import traceback

    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # PyTorch, which reads this when it first looks for a GPU, finds none
    elif device == "cuda":
        from headway.hardware import choose_device

        if quick:
            raise ConfigError("--device cuda has no effect with --quick, which uses the CPU; leave out one of them")
        choose_device(device)  # raises an error if there is no GPU
    from headway.experiments.experiment import Settings, measure_experiment, publish
    from headway.experiments.report import write_report
    from headway.hardware import keep_freed_memory

    keep_freed_memory()
    if name in ("pool", "report"):
        if quick:
            raise ConfigError(f"--quick has no effect on {name}; leave it out")
        (_work_on_pool if name == "pool" else _report)(output, data)
        return
    names = EXPERIMENT_NAMES if name == "all" else (name,)
    chosen = [load_experiment(current) for current in names]
    _refuse_idle_options(chosen, quick=quick, data=data)
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data}: no such folder; expected a folder that contains corpora such as multi30k")
    settings = Settings(
        quick=quick,
        seeds=tuple(range(1, seeds + 1)),
        data_folder=data,
        work_folder=output / "work" / ("quick" if quick else "full"),
        say=lambda line: print(line, file=sys.stderr, flush=True),
        pool_folder=output / "pool",
    )
    report = output / ("report.html" if name == "all" else f"{name}.html")
    done: list[Experiment] = []
    failed: list[str] = []
    for number, current in enumerate(chosen, start=1):
        settings.say(f"[{number}/{len(chosen)}] {current.name}: {current.title}")
        try:
            measure_experiment(current, settings, output, command=_command(current, settings))
        except Exception as error:
            if len(chosen) == 1:
                raise
            failed.append(current.name)
            known = isinstance(error, HeadwayError)
            settings.say(f"headway: {current.name}: {error if known else traceback.format_exc()}")
        else:
            done.append(current)
    if done:
        records = publish(done, output)
        _print_verdicts(records)
        write_report(records, output, report)
        settings.say(f"written: {report}")
    if failed:
        raise HeadwayError(
            f"{len(failed)} of {len(chosen)} experiments failed: {', '.join(failed)}; the report contains the others; "
            "run the same command again to repeat only the failed ones"
        )


def _work_on_pool(output: Path, data: Path | None) -> None:
    """Train the models of the pool, or list them if ``data`` is None."""
    from headway.experiments.experiment import Settings
    from headway.experiments.pool_runs import PoolFolder, describe_pool, work_on_pool

    folder = PoolFolder(output / "pool", output / "work" / "pool")
    if data is None:
        print(describe_pool(folder, names=True))
        return
    settings = Settings(
        quick=False,
        seeds=(),
        data_folder=data,
        work_folder=folder.work,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    work_on_pool(folder, settings)


def _report(output: Path, data: Path | None) -> None:
    """Judge and draw the experiments whose results are in the output folder, without measuring anything."""
    from headway.experiments.experiment import publish
    from headway.experiments.report import write_report

    if data is not None:
        raise ConfigError("--data has no effect on report, which measures nothing; leave it out")
    stored = [name for name in EXPERIMENT_NAMES if (output / f"{name}.json").is_file()]
    if not stored:
        raise ConfigError(f"{output}: contains no experiment results; run headway experiment all -o {output} first")
    records = publish([load_experiment(name) for name in stored], output)
    _print_verdicts(records)
    write_report(records, output, output / "report.html")


def _print_verdicts(records: Sequence[ExperimentRecord]) -> None:
    for record in records:
        for claim, verdict in zip(record.claims, record.verdicts, strict=True):
            print(f"{record.name}\t{verdict.outcome}\t{claim.text}\t{verdict.reason}", flush=True)


def _refuse_idle_options(chosen: Sequence[Experiment], *, quick: bool, data: Path | None) -> None:
    """Raise :class:`ConfigError` for --data if no chosen experiment uses it."""
    if data is None:
        return
    if quick:
        raise ConfigError(
            f"--data {data}: has no effect with --quick, which trains small models on synthetic data; leave out "
            "--data or --quick"
        )
    if not any(one.data_files for one in chosen):
        known = [name for name in EXPERIMENT_NAMES if load_experiment(name).data_files]
        raise ConfigError(
            f"--data {data}: has no effect on {chosen[0].name}; leave it out (experiments that use it: "
            f"{', '.join(known)})"
        )


def _command(experiment: Experiment, settings: Settings) -> str:
    """Return the command that repeats one experiment."""
    words = ["headway", "experiment", experiment.name, "-o", "OUTPUT", "--seeds", str(len(settings.seeds))]
    words += ["--quick"] if settings.quick else []
    words += ["--data", str(settings.data_folder)] if settings.data_folder and experiment.data_files else []
    return shlex.join(words)
