"""Sequence-level knowledge distillation (Kim & Rush 2016, "Sequence-Level Knowledge Distillation", section 3.2).

A student is trained on the teacher's translations of the training sources instead of the original targets. Beam search
approximates the mode of the teacher's distribution, and the mode represents the whole distribution. Such translations
are more regular than human translations, so a smaller student learns more from them and needs a smaller beam.

Files in the run folder:

    distilled/train-0.jsonl    source, target (by the teacher) and original target of each pair; one file per corpus
    distilled/dev.jsonl        copy of the development set
    distilled/teacher.json     the teacher, the beam size and the translated corpora
    distilled/jobs/            one job per corpus (:mod:`headway.jobs`), in chunks of up to 2,048 pairs

Each job is named with a hash of everything that determines its results: the teacher's files, the beam size and the
pairs. A killed command loses at most one chunk, and stale translations are never used. If a corpus changes, its new job
reuses the results of unchanged chunks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from headway.bundle import TaskConfig, read_config
from headway.data.bad_lines import SKIP_HINT, BadLines
from headway.data.readers import Corpus, read_examples
from headway.data.store import fingerprint
from headway.decode.request import DecodingOptions
from headway.engine.shortlist_file import SHORTLIST_FILE
from headway.errors import CheckpointError, ConfigError, TrainingError
from headway.interop.hub import model_folder
from headway.jobs.join import join_results
from headway.jobs.line_map import ConvertedBatch, ConvertedLine, Line
from headway.jobs.plan import JOB_FILE, JobChunk, JobRequest, Plan, make_plan
from headway.jobs.results import ChunkResult
from headway.jobs.reuse import iter_unfinished_chunks, remove_damaged_results, reuse_results, store_result
from headway.jobs.worker import Worker
from headway.predict import Translator, load_translator
from headway.storage import atomic_write, atomic_write_text, checksum, lock_file
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.snapshot import checkpoint_folders

_CHUNK_PAIRS = 2048  # translated in a few seconds, with enough sentences of similar length to fill batches
_SAY_EVERY_S = 30.0


def distill(
    teacher: str | Path,
    recipe: Recipe,
    run: str | Path,
    *,
    beam_size: int = 4,
    keep_original: bool = False,
    listener: Listener | None = None,
    reused_run: str | Path | None = None,
) -> Recipe:
    """Translate the sources of all training corpora into ``run``/distilled, and return the student's recipe.

    The student's recipe is ``recipe`` with its corpora replaced by the distilled ones, or with both if
    ``keep_original`` is set. Corpus weights and other options are unchanged. Translations from earlier calls are
    reused.

    A teacher with several target languages translates into the corpus's ``target_language``, or into the task's target
    language if the corpus has none. A teacher with several source languages uses the corpus's ``source_language``, or
    its default if the corpus has none.

    A source with more than data.filter.max_length tokens (in the teacher's vocabulary) is not translated. Its pair has
    an empty target, so training skips it.

    ``reused_run`` is the folder of a run whose translations are reused.

    Raises:
        BundleError: ``teacher`` is not a model folder.
        ConfigError: The teacher's languages differ from the recipe's, or ``beam_size`` is out of range.
        DataError: A corpus cannot be read.
        CheckpointError: The student has already been trained on different translations.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "headway distill translates in one process, but torchrun has started several; run it without torchrun, "
            "press Ctrl-C when training starts, and resume with `torchrun ... -m -- headway train RUN/recipe.toml "
            "--run RUN`"
        )
    run = Path(run)
    teacher = model_folder(teacher)
    if reused_run is not None and Path(reused_run, "distilled").is_dir():
        shutil.copytree(Path(reused_run, "distilled"), run / "distilled")
    listener = listener or Listener()
    options = DecodingOptions.parse({"beam_size": beam_size}, "options")
    if read_config(teacher).capability == "continues":
        raise ConfigError(
            f"{teacher}: this is a language model, which cannot translate; to distill a language model, set "
            "training.teacher in the student's recipe, and run headway train"
        )
    translator = load_translator(teacher, device=recipe.training.device, precision="float32")
    home, folder, corpora = run / "distilled", Path(recipe.data.folder), recipe.data.train
    work = [(corpus, _requested_languages(teacher, translator, recipe.task, corpus)) for corpus in corpora]
    for _, languages in work:  # raises an error for an unsupported language before any corpus is read
        translator.translate([], options, **languages)
    teacher_key = _teacher_key(teacher)
    with lock_file(home / "lock"):  # if several processes call this, one translates, and the others reuse its files
        jobs = [_make_job(home, *entry, folder, recipe, teacher_key, beam_size) for entry in work]
        plans = [plan for plan, _ in jobs]
        missing = sum(_missing_chunks(plans).values())
        if missing and checkpoint_folders(run / "checkpoints"):
            for plan in (plan for plan, is_new in jobs if is_new):
                shutil.rmtree(plan.folder.parent)
            raise CheckpointError(
                f"{run}: the student was not trained on the translations of these corpora by {teacher} with beam size "
                f"{beam_size} (or files in {home / 'jobs'} are missing); restore teacher, beam size and corpora to "
                "resume, choose another --run, or start over with --fresh"
            )
        listener.on_message(f"{missing:,} sources to translate with {teacher}, beam {beam_size}")
        if recipe.data.dev:  # copied, so that one folder contains all data for the student
            pairs = read_examples(recipe.data.dev, folder, bad_lines=_bad_lines(recipe))
            _write_jsonl(home / "dev.jsonl", ({"source": source, "target": target} for source, target in pairs))
        progress = _TranslationProgress(missing, listener)
        for number, (plan, (_, languages)) in enumerate(zip(plans, work, strict=True)):
            for earlier in plans[:number]:
                reuse_results(plan, earlier)
            teacher_map = _TeacherMap(translator, options, recipe.data.filter.max_length, languages)
            Worker(plan, teacher_map, in_order=True, on_chunk=progress.count).run()
        for number, plan in enumerate(plans):
            join_results(plan, home / f"train-{number}.jsonl")
        for unused in {*(home / "jobs").iterdir()} - {plan.folder.parent for plan in plans}:
            shutil.rmtree(unused)
        shutil.rmtree(
            home / "pieces", ignore_errors=True
        )  # written by older versions; the jobs contain the translations now
        about = {"teacher": str(teacher), "fingerprint": teacher_key, "beam_size": beam_size}
        content = {**about, "corpora": [corpus.as_dict() for corpus in corpora]}
        atomic_write_text(home / "teacher.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return _student_recipe(recipe, home, keep_original)


class _Languages(TypedDict):
    """Language arguments of ``Translator.translate``."""

    source_language: str | None
    target_language: str | None


def _requested_languages(teacher: Path, translator: Translator, task: TaskConfig, corpus: Corpus) -> _Languages:
    """Return the language arguments for translating a corpus with the teacher."""
    teacher_task, target = translator.bundle.task, corpus.target_language or task.target_language
    multilingual = bool(translator.target_languages)
    if teacher_task.source_language != task.source_language or not (
        multilingual or teacher_task.target_language == target
    ):
        raise ConfigError(
            f"{teacher} translates {teacher_task.source_language} to {teacher_task.target_language}, but the recipe "
            f"asks for {task.source_language} to {target} ({corpus.shown_files}); choose another teacher, or set "
            f"task.source_language = {teacher_task.source_language!r} and "
            f"task.target_language = {teacher_task.target_language!r}"
        )
    source = corpus.source_language if translator.bundle.token_template.source_languages else None
    return {"source_language": source, "target_language": target if multilingual else None}


def _student_recipe(recipe: Recipe, folder: Path, keep_original: bool) -> Recipe:
    """Return ``recipe`` with its corpora replaced by the distilled files in ``folder``."""

    def reading(corpus: Corpus, file: str, target: str = "target") -> Corpus:
        return corpus.model_copy(update={"files": (file,), "fields": ("source", target)})

    train = [reading(corpus, f"train-{number}.jsonl") for number, corpus in enumerate(recipe.data.train)]
    if keep_original:
        train += [reading(corpus, corpus.files[0], "original") for corpus in train]
    dev = recipe.data.dev and reading(recipe.data.dev, "dev.jsonl")
    data = recipe.data.model_copy(update={"folder": str(folder), "train": tuple(train), "dev": dev})
    return recipe.model_copy(update={"data": data})


def _write_jsonl(path: Path, records: Iterable[dict[str, str]]) -> None:
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _bad_lines(recipe: Recipe) -> BadLines:
    return BadLines(recipe.data.on_error, SKIP_HINT)


def _pairs(corpus: Corpus, folder: Path, recipe: Recipe) -> Iterator[dict[str, str]]:
    for source, target in read_examples(corpus, folder, bad_lines=_bad_lines(recipe)):
        yield {"source": source, "original": target}


def _teacher_key(teacher: Path) -> str:
    """Return a hash of the teacher's files that affect translations."""
    files = (path for path in sorted(teacher.iterdir()) if path.suffix in (".json", ".safetensors"))
    hashed = [path for path in files if path.name != SHORTLIST_FILE]  # the teacher does not use a shortlist
    return fingerprint([(path.name, checksum(path)) for path in hashed])


def _make_job(
    home: Path, corpus: Corpus, languages: _Languages, folder: Path, recipe: Recipe, teacher_key: str, beam_size: int
) -> tuple[Plan, bool]:
    """Return the job that translates a corpus, with finished chunks of earlier jobs, and whether the job is new."""
    content = hashlib.blake2b(digest_size=20)
    for pair in _pairs(corpus, folder, recipe):
        content.update(json.dumps(pair).encode() + b"\n")
    options = {"beam_size": beam_size, "max_length": recipe.data.filter.max_length, **languages}
    job = home / "jobs" / fingerprint(teacher_key, sorted(options.items()), content.hexdigest())
    is_new = not (job / "plan" / JOB_FILE).exists()
    pairs = job / "pairs.jsonl"
    if is_new:
        _write_jsonl(pairs, _pairs(corpus, folder, recipe))
    plan = make_plan(job / "plan", JobRequest("distill", options, {"teacher": teacher_key}, [[pairs]], _CHUNK_PAIRS))
    remove_damaged_results(plan)
    for other in sorted((home / "jobs").glob(f"*/plan/{JOB_FILE}")):
        if other.parent != plan.folder:
            reuse_results(plan, Plan(other.parent))
    _take_over_pieces(plan, home / "pieces", (teacher_key, beam_size, recipe.data.filter.max_length), languages)
    return plan, is_new


def _take_over_pieces(plan: Plan, folder: Path, key: tuple[str, int, int], languages: _Languages) -> None:
    """Store translations from an older version, which wrote one file per chunk, as the results of their chunks."""
    source_language = languages["source_language"]
    for chunk in list(iter_unfinished_chunks(plan)) if folder.is_dir() else []:
        pairs = [json.loads(line[0]) for line in plan.read_lines(chunk)]
        sources = [pair["source"] for pair in pairs]
        content = (*key, languages["target_language"], sources, *([source_language] if source_language else []))
        path = folder / f"{fingerprint(*content)}.json"
        with suppress(OSError, ValueError):
            targets = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(targets, list) and len(targets) == len(pairs):
                output = "".join(_record(pair, target) for pair, target in zip(pairs, targets, strict=True))
                store_result(plan, chunk, ChunkResult(output.encode(), len(pairs)))


def _record(pair: dict[str, str], target: str) -> str:
    """Return the JSON line of a pair with its translation."""
    record = {"source": pair["source"], "target": target, "original": pair["original"]}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _missing_chunks(plans: Iterable[Plan]) -> dict[int, int]:
    """Return the number of sources in each chunk without translations. Identical chunks are counted once."""
    return {chunk.digest: chunk.num_lines for plan in plans for chunk in iter_unfinished_chunks(plan)}


class _TeacherMap:
    """Translate the sources of JSON lines. The translation of a source that is too long is empty."""

    processor: dict[str, Any] = {}  # noqa: RUF012  # a run belongs to one machine

    def __init__(
        self,
        translator: Translator,
        options: DecodingOptions,
        max_length: int,
        languages: _Languages,
    ) -> None:
        self._translator, self._options, self._max_length = translator, options, max_length
        self._languages = languages

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the source, translation and original target of each pair."""
        pairs, languages = [json.loads(line[0]) for line in lines], self._languages
        sources = list(dict.fromkeys(pair["source"] for pair in pairs))  # repeated sources are translated once
        bundle, limit = self._translator.bundle, self._max_length
        if bundle.model.max_length is not None:  # special tokens occupy some of the model's positions
            limit = min(limit, bundle.model.max_length - bundle.token_template.fill(**languages).source_overhead)
        lengths = map(len, bundle.source_tokenizer.encode_batch(list(map(bundle.normalized, sources))))
        short = [source if length <= limit else "" for source, length in zip(sources, lengths, strict=True)]
        translations = self._translator.translate(short, self._options, **languages, protect=False)
        targets = {source: translation.text for source, translation in zip(sources, translations, strict=True)}
        return ConvertedBatch([ConvertedLine(_record(pair, targets[pair["source"]])) for pair in pairs])

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Raise an error: every source must be translated."""
        raise TrainingError(reason, where=f"{location}, line {number}")


class _TranslationProgress:
    """Report the number of translated sources out of ``total`` and, occasionally, the estimated remaining time."""

    def __init__(self, total: int, listener: Listener) -> None:
        self._total, self._listener, self._done = total, listener, 0
        self._begin = self._said = time.monotonic()

    def count(self, chunk: JobChunk) -> None:
        """Count the sources of a finished chunk, and report the progress."""
        self._done += chunk.num_lines
        self._listener.on_activity_progress("sources translated", self._done)
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_S or self._done == self._total:
            self._said, rate = now, self._done / max(now - self._begin, 1e-9)
            left = timedelta(seconds=round((self._total - self._done) / rate))
            self._listener.on_message(
                f"translated {self._done:,} of {self._total:,} sources, {rate:,.0f}/s  ETA {left}"
            )
