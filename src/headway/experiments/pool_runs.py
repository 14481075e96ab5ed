"""Train the runs of the pool, one after the other: ``headway experiment pool``.

Each run ends in a *record*, a compressed file of a few dozen kilobytes that is kept in the repository, so that verdicts
need no models and a later reader can test something else: the log-probability of each test sentence's reference under
the last weights and under the average of the last five checkpoints, translations with beams of 1 and 4, the curve of
the losses, what else is measured with its model (:mod:`model_measurements`), and where, when and by which code each was
made. What has a record is done, whatever code made it. If a record lacks a measurement, and the weights are still in
the folder of the trainings, it is completed.

Any number of processes, on any number of machines, may work on one folder, and may be started twice or killed at any
time. They share the runs by leases (:mod:`headway.jobs.protocol`), and the training of a killed process is resumed from
its last checkpoint by whoever takes its run over. Each process uses one thread, whose number affects the last bits.
Processes of two versions with different lists of runs do not see each other's leases: stop one before the other.
"""

from __future__ import annotations

import json
import lzma
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headway.calls.run import Run
from headway.data.store import ContentHashes, fingerprint
from headway.decode import DecodingOptions
from headway.errors import CheckpointError, DataError, DivergenceError
from headway.experiments.changed_transformer import ARCHITECTURE
from headway.experiments.code_hash import engine_hash
from headway.experiments.corpus import AG_NEWS, MULTI30K, find_data, pair_files, write_files
from headway.experiments.experiment import Settings
from headway.experiments.model_measurements import MEASUREMENTS, TEST, TrainedModel, read_pairs
from headway.experiments.pool import PoolRun, Variant, all_runs, core_hours, recipe_sections, speeds_of
from headway.jobs.named_leases import NamedLeases
from headway.models.registry import register
from headway.predict import Translator
from headway.storage import atomic_write
from headway.tasks import parse_recipe, train
from headway.training.averaging import average_checkpoints

BEAMS = (1, 4)
_POLL_S = 5.0  # time between two looks at the leases of others
_DIGITS = 3  # of log-probabilities in nats

PoolRecord = dict[str, Any]
"""The content of a record; :func:`_train` lists its keys."""


@dataclass(frozen=True)
class PoolFolder:
    """The folders of a pool.

    Attributes:
        records: The folder of the finished runs' records.
        work: The folder of trainings and leases, which all machines share.
    """

    records: Path
    work: Path

    def path(self, name: str) -> Path:
        """Return the file of the record ``name``."""
        return self.records / f"{name}.json.xz"

    def read(self, name: str) -> PoolRecord | None:
        """Return the record ``name``, or None if there is none.

        Raises:
            DataError: The file is damaged.
        """
        path = self.path(name)
        return _read(path, path.stat().st_mtime_ns) if path.is_file() else None

    def chosen_rate(self, run: PoolRun) -> float | None:
        """Return the learning rate of a run, or None if the trials that it depends on are not done.

        Of the rates that were tried with seed 0, the one with the lowest loss of the development set is chosen.
        """
        if run.rate is not None:
            return run.rate
        if not run.variant.rates:
            return _own_rate(run.variant)
        losses = dict[float, float]()
        for rate in run.variant.rates:
            trial = self.read(PoolRun(run.variant, 0, rate).name)
            if trial is None:
                return None
            losses[rate] = math.inf if trial["diverged"] else trial["curve"]["dev"][-1][1]
        return min(losses, key=losses.__getitem__)

    def record_name(self, run: PoolRun) -> str | None:
        """Return the name of the record of a run, or None while its learning rate is undecided.

        A baseline at its best rate is the baseline itself, if the best rate is the recipe's.
        """
        rate, untuned = self.chosen_rate(run), run.variant.untuned
        is_untuned = untuned and run.seed and rate == _own_rate(run.variant)
        return None if rate is None else f"{untuned}-seed{run.seed}" if is_untuned else run.name

    def run_folder(self, name: str, record: Mapping[str, Any]) -> Path:
        """Return the folder of a training, given its record or the part with its recipe and the hashes of its data."""
        return self.work / "runs" / f"{name}-{fingerprint(record['recipe'], record['data'])[:8]}"

    def record_of(self, run: PoolRun) -> PoolRecord | None:
        """Return the record of a run, or None if there is none, or the learning rate is undecided."""
        name = self.record_name(run)
        return None if name is None else self.read(name)

    def is_done(self, run: PoolRun) -> bool:
        """Return whether a run has a record that has all measurements, or cannot get them: its weights are gone."""
        record = self.record_of(run)
        return record is not None and not self.lacking(run, record)

    def lacking(self, run: PoolRun, record: PoolRecord) -> list[str]:
        """Return the measurements that a record lacks, if its weights are still there."""
        lacking = [key for key in run.variant.measured if key not in record.get("measured", {})]
        is_measurable = run.seed and not record["diverged"] and (self.run_folder(run.name, record) / "last").is_dir()
        return lacking if is_measurable else []


@cache
def _read(path: Path, changed: int) -> PoolRecord:
    """Return a record that was ``changed`` at a time."""
    try:
        record: PoolRecord = json.loads(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); restore it, or remove it to train the run again") from None
    return record


def _own_rate(variant: Variant) -> float:
    return float(recipe_sections(variant, 0, None)["optimizer"]["learning_rate"])


def work_on_pool(folder: PoolFolder, settings: Settings, *, max_runs: int | None = None) -> None:
    """Train the runs that have no record, in their order, until all have one.

    Args:
        folder: The folders of the pool.
        settings: Where the corpora are, and how to report progress.
        max_runs: Number of runs after which to stop. None means no limit.

    Raises:
        ConfigError: The corpus is missing.
        KeyboardInterrupt: The training was interrupted. A later call resumes it.
    """
    torch.set_num_threads(1)
    register(ARCHITECTURE)
    runs, num_done, refusals = all_runs(), 0, Counter[str]()
    leases = NamedLeases(folder.work, [run.name for run in runs])
    while num_done != max_runs:
        undone = [run for run in runs if not folder.is_done(run)]
        if not undone:
            return
        ready = [run for run in undone if folder.record_name(run) == run.name]  # others end with the run they share
        ready.sort(key=lambda run: refusals[run.name])
        run, lease = next(((run, lease) for run in ready if (lease := leases.take(run.name))), (None, None))
        if run is None or lease is None:  # others have them; their machines may die
            time.sleep(_POLL_S)
            continue
        try:
            with leases.hold(lease):
                if not folder.is_done(run):  # another process may have finished it since
                    settings.say(f"{describe_pool(folder)}; now {run.name}")
                    _do(run, folder, settings)
                    num_done += 1
        except CheckpointError as error:  # such as a process that was stopped, so that its lease expired, but lives
            refusals[run.name] += 1
            if refusals[run.name] == 1:
                settings.say(f"{run.name} is left for later: {error}")
            else:
                time.sleep(_POLL_S)


def describe_pool(folder: PoolFolder, *, names: bool = False) -> str:
    """Return how many runs are done, running and missing, and an estimate of the hours that are left.

    ``names`` adds the names of the runs, in lines of their own.
    """
    runs = all_runs()
    records = {run.name: record for run in runs if (record := folder.record_of(run)) is not None}
    owners = NamedLeases(folder.work, [run.name for run in runs]).owners()
    done, left = ([run for run in runs if (run.name in records) == is_done] for is_done in (True, False))
    running = {run.name: owners[run.name].host for run in left if run.name in owners}
    speeds = speeds_of((records[run.name]["variant"], records[run.name]["cpu_seconds_per_step"]) for run in done)
    hours = {run.name: core_hours(run, speeds) for run in left}
    lines = [f"{len(done)} runs done, {len(running)} running, {len(left) - len(running)} missing"]
    if left:
        where = "measured" if speeds else "assumed"
        lines[0] += f"; about {sum(hours.values()):.0f} core hours left, from {where} times of a step"
    if unmeasured := [run.name for run in done if not folder.is_done(run)]:
        lines[0] += f"; {len(unmeasured)} runs lack measurements"
    if names:
        lines += [f"done\t{run.name}" for run in done]
        lines += [f"running\t{name}\t{hours[name]:.2f} core hours\t{host}" for name, host in running.items()]
        lines += [f"missing\t{name}\t{hours[name]:.2f} core hours" for name in hours if name not in running]
    return "\n".join(lines)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, completely or not at all."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    with atomic_write(path) as aside:
        aside.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _do(run: PoolRun, folder: PoolFolder, settings: Settings) -> None:
    """Train a run, unless it has a record, and measure what the record lacks."""
    record = folder.read(run.name)
    if record is None:
        record = _train(run, folder, settings)
        write_record(folder.path(run.name), record)
    run_folder = folder.run_folder(run.name, record)
    for name in ("checkpoints", "tokens"):  # those of all runs would take gigabytes
        shutil.rmtree(run_folder / name, ignore_errors=True)
    corpus, data = _data(run, folder, settings)
    lacking = folder.lacking(run, record)
    if lacking and record["data"] != data:
        raise DataError(f"{corpus}: not what {run.name} was trained on; restore it to measure {lacking}")
    model = TrainedModel(run_folder, corpus)
    for key in lacking:
        settings.say(f"measuring {key} of {run.name}")
        by = {"engine": engine_hash(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        for part, value in (("measured", MEASUREMENTS[key](model)), ("measured_by", by)):
            record = {**record, part: {**record.get(part, {}), key: value}}
        write_record(folder.path(run.name), record)


def _train(run: PoolRun, folder: PoolFolder, settings: Settings) -> PoolRecord:
    """Train a run, read the test set, and return the record. A training that diverges is a result too."""
    rate = folder.chosen_rate(run)
    assert rate is not None
    sections = recipe_sections(run.variant, run.seed, rate)
    corpus, data = _data(run, folder, settings)
    record: PoolRecord = {"variant": run.variant.name, "seed": run.seed, "rate": rate, "recipe": sections, "data": data}
    run_folder = folder.run_folder(run.name, record)
    sections = {**sections, "data": {**sections["data"], **_corpora(corpus, run.variant, folder.work)}}
    recipe, start, begin = parse_recipe(sections, run.name), _last_step(run_folder), time.process_time()
    try:
        if train(recipe, run_folder).interrupted:
            raise KeyboardInterrupt
        diverged = False
    except DivergenceError:
        diverged = True
    steps = _last_step(run_folder) - start
    seconds = time.process_time() - begin  # with tokenization, validation and checkpoints, like elapsed_s below
    curves = {kind: read_metrics(run_folder, kind) for kind in ("train", "dev")}
    record |= {
        "diverged": diverged,
        "curve": {kind: [[line["step"], round(line["loss"], 4)] for line in curves[kind]] for kind in curves},
        "elapsed_s": curves["train"][-1]["elapsed_s"] if curves["train"] else 0.0,
        "cpu_seconds_per_step": round(seconds / steps, 4) if steps else None,
        "engine": engine_hash(),
        "starts": json.loads((run_folder / "environment.json").read_text(encoding="utf-8")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not diverged and not (run_folder / "last").is_dir():
        average_checkpoints(run_folder, 1, run_folder / "last")
    if not diverged and not run.variant.classifies:
        settings.say(f"examining {run_folder.name}")
        record |= _examine(TrainedModel(run_folder, corpus))
    return record


def _data(run: PoolRun, folder: PoolFolder, settings: Settings) -> tuple[Path, dict[str, str]]:
    """Return the folder of a run's corpus, and the hashes of its files."""
    files, name = (AG_NEWS, "AG News") if run.variant.classifies else (MULTI30K, "Multi30k")
    corpus, hashes = find_data(settings, files, name), ContentHashes(folder.work / "inputs.json")
    return corpus, {file: hashes.hash_file(corpus.parent / file) for file in files}


def read_metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of one kind, such as "train" or "dev", that a run has written."""
    return [line for line in Run(run, interrupted=True).metrics if line["kind"] == kind]


def _last_step(run_folder: Path) -> int:
    lines = read_metrics(run_folder, "train")
    return lines[-1]["step"] if lines else 0


def _corpora(corpus: Path, variant: Variant, work: Path) -> dict[str, Any]:
    """Return the keys of the recipe's data section that name files."""
    if variant.classifies:  # the file for testing is not read; texts at the end of the other one are for choosing
        with (corpus / "train.tsv").open(encoding="utf-8") as file:
            parts = {"train.tsv": list(islice(file, variant.pairs)), "dev.tsv": list(file)}
        folder = write_files({name: "".join(part) for name, part in parts.items()}, work, "labeled")
        return {"folder": str(folder), "train": [{"files": ["train.tsv"]}], "dev": {"files": ["dev.tsv"]}}
    if variant.pairs is not None:  # the first pairs; the corpus is in random order
        files = dict[str, str]()
        for language in ("de", "en"):
            with (corpus / f"train.{language}").open(encoding="utf-8") as file:
                files[f"train.{language}"] = "".join(islice(file, variant.pairs))
            files[f"val.{language}"] = (corpus / f"val.{language}").read_text(encoding="utf-8")
        corpus = write_files(files, work, "small")
    return pair_files(corpus)


def _examine(trained: TrainedModel) -> PoolRecord:
    """Score and translate the test set with the last weights, in float32, and score it with the averaged weights."""
    model = trained.translator()
    sources, references = (list(side) for side in zip(*read_pairs(trained.corpus, TEST), strict=True))
    scores, num_tokens = _reference_scores(model, sources, references)
    translations = {
        str(beam): [result.text for result in model.translate(sources, DecodingOptions(beam_size=beam))]
        for beam in BEAMS
    }
    return {
        "log_probs": scores,
        "num_tokens": num_tokens,
        "log_probs_of_average": _reference_scores(trained.translator("average"), sources, references)[0],
        "translations": translations,
    }


def _reference_scores(model: Translator, sources: list[str], references: list[str]) -> tuple[list[float], list[int]]:
    """Return log P(reference | source) in nats, and the number of its tokens with EOS, of each sentence."""
    scored = model.score(sources, references)
    scores = [round(target.log_probability, _DIGITS) for target in scored]
    return scores, [len(target.token_log_probabilities) for target in scored]
