"""Train the runs of the pool, one after the other: ``headway experiment pool``.

Each run ends in a *record*, a compressed file of a few dozen kilobytes that is kept in the repository, so that verdicts
need no models and a later reader can test something else: the log-probability of each test sentence's reference under
the last weights and under the average of the last five checkpoints, translations with beams of 1 and 4, the curve of
the losses, and where, when and by which code it was made. What has a record is done, whatever code made it.

Any number of processes, on any number of machines, may work on one folder, and may be started twice or killed at any
time. They share the runs by leases (:mod:`headway.jobs.protocol`), and the training of a killed process is resumed from
its last checkpoint by whoever takes its run over. Each process uses one thread, whose number affects the last bits.
"""

from __future__ import annotations

import json
import lzma
import math
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from headway.data.store import ContentHashes, fingerprint
from headway.decode import DecodingOptions
from headway.errors import DataError, DivergenceError
from headway.experiments.code_hash import engine_hash
from headway.experiments.corpus import MULTI30K, TextPair, find_data, write_files
from headway.experiments.experiment import Settings
from headway.experiments.pool import BASELINE, PoolRun, all_runs, recipe_sections
from headway.experiments.training import read_metrics
from headway.hardware import has_fast_bfloat16
from headway.jobs.files import LocalFiles
from headway.jobs.owner import Owner
from headway.jobs.protocol import ChunkProtocol, Lease, Timing, lease_name, newest_generations
from headway.jobs.renewal import renewed
from headway.predict import Translator, load_translator
from headway.storage import atomic_write
from headway.tasks import parse_recipe, train
from headway.training.averaging import average_checkpoints

TEST = "test_2016_flickr"
BEAMS = (1, 4)
_BASELINE_RATE = BASELINE["optimizer"]["learning_rate"]
_POLL_S = 5.0  # time between two looks at the leases of others
_DIGITS = 3  # of log-probabilities in nats

PoolRecord = dict[str, Any]
"""The content of a record; :func:`_do` lists its keys."""


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
        if not path.is_file():
            return None
        try:
            record: PoolRecord = json.loads(lzma.decompress(path.read_bytes()))
        except (lzma.LZMAError, EOFError, ValueError) as error:
            raise DataError(f"{path}: damaged ({error}); restore it, or remove it to train the run again") from None
        return record

    def chosen_rate(self, run: PoolRun) -> float | None:
        """Return the learning rate of a run, or None if the trials that it depends on are not done.

        Of the rates that were tried with seed 0, the one with the lowest loss of the development set is chosen.
        """
        if run.rate is not None:
            return run.rate
        if not run.variant.rates:
            rate: float = recipe_sections(run.variant, 0, None)["optimizer"]["learning_rate"]
            return rate
        losses = dict[float, float]()
        for rate in run.variant.rates:
            trial = self.read(PoolRun(run.variant, 0, rate).name)
            if trial is None:
                return None
            losses[rate] = math.inf if trial["diverged"] else trial["curve"]["dev"][-1][1]
        return min(losses, key=losses.__getitem__)

    def record_name(self, run: PoolRun) -> str | None:
        """Return the name of the record of a run, or None while its learning rate is undecided.

        The baseline at its best rate is the baseline itself, if the best rate is the recipe's.
        """
        rate = self.chosen_rate(run)
        is_baseline = not run.variant.changes and run.seed and rate == _BASELINE_RATE
        return None if rate is None else f"baseline-seed{run.seed}" if is_baseline else run.name

    def is_done(self, run: PoolRun) -> bool:
        """Return whether a run has a record."""
        name = self.record_name(run)
        return name is not None and self.path(name).is_file()


class _Leases:
    """The leases of runs, by the numbers of the runs in :func:`all_runs`."""

    def __init__(self, work: Path, runs: Sequence[PoolRun]) -> None:
        names = [run.name for run in runs]
        self._files = LocalFiles(work / f"leases-{fingerprint(names)[:8]}")  # another list has other numbers
        self._owner = Owner.this_process()
        clocks: Any = {"monotonic": time.monotonic, "sleep": time.sleep}
        self._protocol = ChunkProtocol(self._files, self._owner, len(names), Timing(), in_order=True, **clocks)

    def owners(self) -> dict[int, Owner]:
        """Return who has taken each run whose last lease was neither released nor held by a process that died here."""
        owners = dict[int, Owner]()
        for number, (generation, is_released) in newest_generations(self._files, "0000").items():
            content = self._files.read(lease_name(number, generation)) or b""
            if not is_released and content.endswith(b"\n"):
                owners[number] = Owner.of(json.loads(content.partition(b" ")[2]))
        return {number: owner for number, owner in owners.items() if not owner.has_died()}

    def take(self, number: int) -> Lease | None:
        """Take a run, or return None if another process has it."""
        generation, is_released = newest_generations(self._files, "0000").get(number, (-1, True))
        name = lease_name(number, generation)
        content = None if is_released else self._files.read(name)
        if content is not None and not self._protocol.has_expired(name, content):
            return None
        return self._protocol.take(number, generation + 1)

    @contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Renew a lease until the end of the block, and release it. If it is lost, interrupt the main thread."""
        try:
            with renewed(self._protocol, lease, on_loss=lambda: signal.raise_signal(signal.SIGINT)):
                yield
        finally:
            self._protocol.release(lease)


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
    runs, num_done = all_runs(), 0
    leases = _Leases(folder.work, runs)
    while num_done != max_runs:
        undone = [number for number, run in enumerate(runs) if not folder.is_done(run)]
        if not undone:
            return
        ready = [number for number in undone if folder.chosen_rate(runs[number]) is not None]
        taken = next(filter(None, map(leases.take, ready)), None)
        if taken is None:  # others have them; their machines may die
            time.sleep(_POLL_S)
            continue
        with leases.held(taken):
            run = runs[taken.chunk]
            if not folder.is_done(run):  # another process may have finished it since
                settings.say(f"{describe_pool(folder)}; now {run.name}")
                _do(run, folder, settings)
                num_done += 1


def describe_pool(folder: PoolFolder, *, names: bool = False) -> str:
    """Return how many runs are done, running and missing, and an estimate of the hours that are left.

    ``names`` adds the names of the runs, in lines of their own.
    """
    runs = all_runs()
    done = [run for run in runs if folder.is_done(run)]
    owners = _Leases(folder.work, runs).owners()
    running = {run.name: owners[number].host for number, run in enumerate(runs) if number in owners and run not in done}
    missing = [run for run in runs if run not in done and run.name not in running]
    lines = [f"{len(done)} runs done, {len(running)} running, {len(missing)} missing"]
    speeds = [record for run in done if (record := folder.read(run.name)) and record["cpu_seconds_per_step"]]
    if speeds:
        seconds = sum(record["cpu_seconds_per_step"] for record in speeds) / len(speeds)
        steps = sum(recipe_sections(run.variant, 0, None)["training"]["steps"] for run in runs if run not in done)
        lines[0] += f"; about {seconds * steps / 3600:.0f} core hours left, at the mean speed of the runs that are done"
    if names:
        lines += [f"done\t{run.name}" for run in done]
        lines += [f"running\t{name}\t{host}" for name, host in running.items()]
        lines += [f"missing\t{run.name}" for run in missing]
    return "\n".join(lines)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, completely or not at all."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    with atomic_write(path) as aside:
        aside.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _do(run: PoolRun, folder: PoolFolder, settings: Settings) -> None:
    """Train a run, examine its model, and write the record. A training that diverges is a result too."""
    rate = folder.chosen_rate(run)
    assert rate is not None
    sections = recipe_sections(run.variant, run.seed, rate)
    precision = "bfloat16" if has_fast_bfloat16(torch.device("cpu")) else "float32"
    sections["training"] = {"precision": precision, **sections["training"]}
    corpus, hashes = find_data(settings, MULTI30K, "Multi30k"), ContentHashes(folder.work / "inputs.json")
    data = {name: hashes.hash_file(corpus.parent / name) for name in MULTI30K}
    run_folder = folder.work / "runs" / f"{run.name}-{fingerprint(sections, data)[:8]}"
    record: PoolRecord = {"variant": run.variant.name, "seed": run.seed, "rate": rate, "recipe": sections, "data": data}
    sections = {**sections, "data": {**sections["data"], **_corpora(corpus, run.variant.pairs, folder.work)}}
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
        "elapsed_s": curves["train"][-1]["elapsed_s"],
        "cpu_seconds_per_step": round(seconds / steps, 4) if steps else None,
        "engine": engine_hash(),
        "starts": json.loads((run_folder / "environment.json").read_text(encoding="utf-8")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not diverged:
        record |= _examine(run_folder, read_test_pairs(corpus), settings)
    write_record(folder.path(run.name), record)
    for name in ("checkpoints", "tokens"):  # those of all runs would take gigabytes
        shutil.rmtree(run_folder / name)


def read_test_pairs(corpus: Path) -> list[TextPair]:
    """Return the sentences of the test set and their references."""
    sides = [(corpus / f"{TEST}.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en")]
    return list(zip(*sides, strict=True))


def _last_step(run_folder: Path) -> int:
    path = run_folder / "metrics.jsonl"
    return read_metrics(run_folder, "train")[-1]["step"] if path.is_file() else 0


def _corpora(corpus: Path, num_pairs: int | None, work: Path) -> dict[str, Any]:
    """Return the keys of the recipe's data section that name files."""
    if num_pairs is not None:  # the first pairs; the corpus is in random order
        files = dict[str, str]()
        for language in ("de", "en"):
            with (corpus / f"train.{language}").open(encoding="utf-8") as lines:
                files[f"train.{language}"] = "".join(islice(lines, num_pairs))
            files[f"val.{language}"] = (corpus / f"val.{language}").read_text(encoding="utf-8")
        corpus = write_files(files, work, "small")
    names = {name: {"files": [f"{name}.de", f"{name}.en"]} for name in ("train", "val")}
    return {"folder": str(corpus), "train": [names["train"]], "dev": names["val"]}


def _examine(run_folder: Path, pairs: Sequence[TextPair], settings: Settings) -> PoolRecord:
    """Score and translate the test set with the last weights, in float32, and score it with the averaged weights."""
    settings.say(f"examining {run_folder.name}")
    last = run_folder / "last"
    if not last.is_dir():
        average_checkpoints(run_folder, 1, last)
    model = load_translator(last, device="cpu", precision="float32", avoid_flagged=False)
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    scores, num_tokens = _reference_scores(model, sources, references)
    average = load_translator(run_folder / "average", device="cpu", precision="float32")
    translations = {
        str(beam): [result.text for result in model.translate(sources, DecodingOptions(beam_size=beam))]
        for beam in BEAMS
    }
    return {
        "log_probs": scores,
        "num_tokens": num_tokens,
        "log_probs_of_average": _reference_scores(average, sources, references)[0],
        "translations": translations,
    }


def _reference_scores(model: Translator, sources: list[str], references: list[str]) -> tuple[list[float], list[int]]:
    """Return log P(reference | source) in nats, and the number of its tokens with EOS, of each sentence."""
    scored = model.score(sources, references)
    scores = [round(target.log_probability, _DIGITS) for target in scored]
    return scores, [len(target.token_log_probabilities) for target in scored]
