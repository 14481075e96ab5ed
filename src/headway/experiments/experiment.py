"""The definition of an experiment, and the steps of a run: measure, judge, draw, write the record.

An experiment is a module of this package (:func:`headway.experiments.load_experiment`). ``measure`` does all measuring
and returns plain numbers. Everything else is computed from these numbers: ``judge`` returns a verdict on each claim,
and ``draw`` returns the figure. Tests can therefore check verdicts with made-up numbers, and a figure can be improved
without measuring again. The file's docstring is also the text of the report, so it contains no markup.

:func:`measure_experiment` and :func:`publish` write NAME.json (claims, verdicts, numbers, conditions, environment),
NAME.svg and NAME.png. If NAME.json exists already and was measured by the same code, with the same settings, from files
with the same content, its numbers are reused.
"""

from __future__ import annotations

import json
import platform
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from headway.data.store import ContentHashes, fingerprint
from headway.errors import DataError
from headway.experiments.code_hash import code_hash, engine_hash
from headway.experiments.figures import figure_style
from headway.experiments.verdicts import Tested, Verdict, decide, settle
from headway.hardware import processor_name
from headway.inspection.picture_files import save_picture
from headway.storage import atomic_write_text
from headway.training.environment import git_commit
from headway.version import __version__

Numbers = dict[str, Any]
"""The measured values, as JSON. The key ``tables``, {caption: [{column: value}]}, is shown in the report."""

_MEASURED = ("numbers", "how", "where", "date", "seconds", "command")


@dataclass(frozen=True)
class Claim:
    """A claim and its source.

    Attributes:
        text: The claim, in our words or, in quotation marks, in those of the source.
        source: The paper and section that make the claim, or "ours".
        literature: The number that the source reports, or "" if it reports none.
    """

    text: str
    source: str
    literature: str = ""


@cache
def read_declarations(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    return tomllib.loads(files("headway.experiments").joinpath(name).read_text(encoding="utf-8"))


def read_claims(name: str) -> tuple[Claim, ...]:
    """Return the claims of an experiment, in ``claims.toml``."""
    return tuple(Claim(*row[:3]) for row in read_declarations("claims.toml")[name])


def decide_claims(name: str, values: Numbers, *decisions: Mapping[str, Any]) -> tuple[Verdict, ...]:
    """Decide the claims of an experiment, with the texts in ``claims.toml`` as reasons.

    Args:
        name: Name of the experiment.
        values: Values for the placeholders in the texts.
        decisions: Keyword arguments of :func:`~headway.experiments.verdicts.decide` for each claim.
    """
    rows = zip(read_declarations("claims.toml")[name], decisions, strict=True)
    return tuple(decide(row[3].format(**values), **decision) for row, decision in rows)


@dataclass(frozen=True)
class Settings:
    """The settings of a measurement.

    Attributes:
        quick: Whether to use small made-up data, which takes seconds, instead of real data.
        seeds: Random seeds. Experiments that depend on chance are repeated with each seed.
        data_folder: The folder that contains corpora such as ``multi30k``. The quick version needs none.
        work_folder: The folder for trained models and partial results. An interrupted measurement resumes from it.
        say: Function that is called with each progress message, which is a single line.
        pool_folder: The folder with the records of the pool (:mod:`headway.experiments.pool_runs`).
    """

    quick: bool
    seeds: tuple[int, ...]
    data_folder: Path | None
    work_folder: Path
    say: Callable[[str], None]
    pool_folder: Path | None = None

    def cached(self, key: str, compute: Callable[[], Numbers]) -> Numbers:
        """Return the result of ``compute()``, stored as ``key``.json in ``work_folder`` and reused by later calls."""
        path = self.work_folder / f"{key}.json"
        if path.is_file():
            return read_numbers(path)
        return write_numbers(path, compute())

    def content_hash(self, *paths: Path) -> str:
        """Return a hash of the contents of files, and of folders with their file names. Missing paths are ignored."""
        hashes, entries = ContentHashes(self.work_folder / "inputs.json"), list[tuple[str, str]]()
        for path in paths:
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            entries += [(file.relative_to(path).as_posix(), hashes.hash_file(file)) for file in files if file.is_file()]
        return fingerprint(entries)


@dataclass(frozen=True)
class Experiment:
    """One or more claims and how to test them.

    Attributes:
        name: The name on the command line.
        title: The title in the report.
        description: The text of the report: the file's docstring. Blank lines separate paragraphs; indented
            paragraphs are shown as they are.
        claims: The claims to test.
        measure: Function that takes the measurements and returns numbers.
        judge: Function that returns one verdict per claim, in the order of ``claims``, from the numbers. Where the
            verdict depends on chance it returns the measured effect, because the level of a test depends on how many
            claims are tested.
        draw: Function that draws the figure from the numbers. It is called inside :func:`figure_style`.
        data_files: The files below ``settings.data_folder`` that the full version reads. Empty if it needs no data.
        reads_pool: Whether the experiment reads the records of the pool in ``settings.pool_folder``.
    """

    name: str
    title: str
    description: str
    claims: tuple[Claim, ...]
    measure: Callable[[Settings], Numbers]
    judge: Callable[[Numbers], tuple[Verdict | Tested, ...]]
    draw: Callable[[Numbers], Figure]
    data_files: tuple[str, ...] = ()
    reads_pool: bool = False


@dataclass(frozen=True)
class ExperimentRecord:
    """The result of an experiment, as stored in NAME.json.

    ``how`` contains the conditions that the numbers depend on: quick or full, seeds, and hashes of code, data and
    records; and whether that code is unchanged. ``where`` contains versions and hardware. ``command`` repeats the
    experiment.
    """

    name: str
    title: str
    claims: tuple[Claim, ...]
    verdicts: tuple[Verdict, ...]
    explanation: str
    numbers: Numbers
    how: dict[str, Any]
    where: dict[str, str]
    date: str
    seconds: float
    command: str


def measure_experiment(experiment: Experiment, settings: Settings, folder: Path, *, command: str = "") -> None:
    """Measure ``experiment``, and store the numbers for :func:`publish`, unless those of an earlier run can be used."""
    path = folder / f"{experiment.name}.json"
    how = _how(experiment, settings)
    measured = _earlier(path, how, settings.say)
    if measured is None:
        begin, date = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        with torch.random.fork_rng(devices=[]):  # measurements set seeds; the caller's draws do not depend on them
            numbers = to_json_values(experiment.measure(settings))
        seconds, where = time.perf_counter() - begin, _where(quick=settings.quick)
        measured = dict(zip(_MEASURED, (numbers, how, where, date, seconds, command), strict=True))
        # Save before judging and drawing: these may fail, and measuring takes most of the time.
        write_numbers(path, measured)
    else:
        settings.say(f"{experiment.name}: reusing the numbers of {measured['date']} ({path})")
    assert len(experiment.judge(measured["numbers"])) == len(experiment.claims), experiment.name


def publish(experiments: Sequence[Experiment], folder: Path) -> list[ExperimentRecord]:
    """Judge the stored numbers of experiments together, and write their records and figures to ``folder``.

    Nothing is measured, so verdicts and figures can be improved afterwards. The numbers of each experiment must have
    been stored by :func:`measure_experiment`, in this version or an earlier one.
    """
    stored = [read_numbers(folder / f"{experiment.name}.json") for experiment in experiments]
    verdicts = settle([one.judge(content["numbers"]) for one, content in zip(experiments, stored, strict=True)])
    records = list[ExperimentRecord]()
    for experiment, content, found in zip(experiments, stored, verdicts, strict=True):
        content["how"]["code is current"] = content["how"]["code"] == code_hash(experiment.measure)
        about = experiment.name, experiment.title, experiment.claims, found, experiment.description.strip()
        record = ExperimentRecord(*about, **{name: content[name] for name in _MEASURED})
        write_numbers(folder / f"{experiment.name}.json", asdict(record))
        with figure_style():
            picture = experiment.draw(content["numbers"])
            for kind in ("svg", "png"):
                save_picture(picture, folder / f"{experiment.name}.{kind}")
        records.append(record)
    return records


def to_json_values(value: Any) -> Any:
    """Convert ``value`` as JSON does: tuples and tensors to lists, keys to strings, NaN and infinity to None."""
    return json.loads(json.dumps(value, default=_to_list), parse_constant=lambda _: None)


def _to_list(value: Any) -> Any:
    if hasattr(value, "tolist"):  # a tensor, an array or one of their scalars
        return value.tolist()
    raise TypeError(f"{type(value).__name__}: cannot be stored as JSON")


def _how(experiment: Experiment, settings: Settings) -> dict[str, Any]:
    data = settings.data_folder if experiment.data_files else None
    pool = settings.pool_folder if experiment.reads_pool else None
    return {
        "form": "quick" if settings.quick else "full",
        "seeds": list(settings.seeds),
        "code": code_hash(experiment.measure),
        "data": None if data is None else settings.content_hash(*(data / name for name in experiment.data_files)),
        # What is computed from the records is named by the claims.
        "pool": settings.content_hash(pool, Path(__file__).with_name("claims.toml")) if pool else None,
    }


def hardware() -> str:
    """Return the processor, the number of threads, and the GPU if there is one."""
    device, count = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "", torch.get_num_threads()
    return f"{processor_name()}, {count} thread{'s' * (count > 1)}{device}"


def _where(*, quick: bool) -> dict[str, str]:
    return {
        "hardware": hardware(),
        "headway": __version__ + (f" ({made_of})" if (made_of := git_commit()) else ""),
        "PyTorch": torch.__version__,
        "NumPy": version("numpy"),
        "Python": platform.python_version(),
        **({} if quick else {"engine": engine_hash()[:12]}),
    }


def _earlier(path: Path, how: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the measurements of an earlier run under the same conditions.

    If there are none, report what has changed and return None.
    """
    before = read_numbers(path) if path.is_file() else {}
    if any(before.get(name) is None for name in _MEASURED):
        return None
    if changed := [name for name, value in how.items() if before["how"].get(name) != value]:
        say(f"{path}: measuring again, because this has changed since {before['date']}: {', '.join(changed)}")
        return None
    return before


def read_numbers(path: Path) -> Numbers:
    """Return the numbers that a file contains, or raise :class:`DataError` if it is damaged."""
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged ({error}); remove it to measure again") from None
    if not isinstance(numbers, dict):
        raise DataError(f"{path}: not an experiment's numbers; remove it to measure again")
    return numbers


def write_numbers(path: Path, numbers: Numbers) -> Numbers:
    """Write numbers to a file, completely or not at all, and return them as they are read again."""
    values: Numbers = to_json_values(numbers)
    atomic_write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return values
