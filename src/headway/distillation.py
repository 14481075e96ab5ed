"""Sequence-level knowledge distillation (Kim & Rush 2016, "Sequence-Level Knowledge Distillation", section 3.2).

A student is trained on the teacher's translations of the training sources instead of the corpus's own targets. Beam
search approximates the mode of the teacher's distribution, and the mode represents the whole distribution. Such
translations are more regular than human ones, so that a smaller student learns more from them and needs less search.

Files in the run folder:

    distilled/train-0.jsonl    source, target (from the teacher) and original of each pair; one file per training corpus
    distilled/dev.jsonl        a copy of the development set
    distilled/teacher.json     the teacher, its beam size, and the corpora that it has translated
    distilled/pieces/          translations of chunks of up to 2,048 sources, for reuse by later calls

A chunk's file name is a hash of everything that determines its content: the teacher's files, the beam size and the
sources. A command that is killed therefore loses at most one chunk, and stale translations are never used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TypedDict

from headway.bundle import TaskConfig, read_config
from headway.data.bad_lines import SKIP_HINT, BadLines
from headway.data.readers import Corpus, read_examples
from headway.data.store import fingerprint
from headway.decode.request import DecodingOptions
from headway.errors import CheckpointError, ConfigError
from headway.predict import Translator, load_translator
from headway.predict.translation.shortlisting import SHORTLIST_FILE
from headway.storage import atomic_write, atomic_write_text, checksum, lock_file
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.snapshot import checkpoint_folders

_CHUNK_PAIRS = 2048  # a few seconds of work, with enough sentences of similar length to fill batches
_SAY_EVERY_S = 30.0


def distill(
    teacher: str | Path,
    recipe: Recipe,
    run: str | Path,
    *,
    beam_size: int = 4,
    keep_original: bool = False,
    listener: Listener | None = None,
) -> Recipe:
    """Translate the sources of all training corpora into ``run``/distilled, and return the student's recipe.

    The student's recipe is ``recipe`` with the distilled corpora in place of its own, or in addition to them if
    ``keep_original`` is set. Corpus weights and other options are unchanged. Translations of earlier calls are reused.

    A teacher with several target languages translates into the corpus's ``target_language``, or into the task's target
    language if the corpus has none. A teacher with several source languages uses the corpus's ``source_language``, or
    its default if the corpus has none.

    A source with more than data.filter.max_length tokens of the teacher is not translated. The pair has an empty
    target, so training leaves it out.

    Raises:
        BundleError: ``teacher`` is not a model folder.
        ConfigError: The teacher's languages differ from the recipe's, or ``beam_size`` is out of range.
        DataError: A corpus cannot be read.
        CheckpointError: The student has already been trained on different translations.
    """
    run = Path(run)
    teacher = Path(teacher)
    listener = listener or Listener()
    options = DecodingOptions.parse({"beam_size": beam_size}, "options")
    if read_config(teacher).capability == "continues":
        raise ConfigError(
            f"{teacher}: a language model, which cannot translate; a language model learns from another one during "
            "training: set training.teacher in its recipe, and run headway train"
        )
    translator = load_translator(teacher, device=recipe.training.device, precision="float32")
    home, folder, corpora = run / "distilled", Path(recipe.data.folder), recipe.data.train
    work = [(corpus, _requested_languages(teacher, translator, recipe.task, corpus)) for corpus in corpora]
    for _, languages in work:  # raises an error for a wrong language before any corpus is read
        translator.translate([], options, **languages)
    cache = _TranslationCache(home / "pieces", teacher, translator, options, recipe.data.filter.max_length)
    with lock_file(home / "lock"):  # if several processes call this, one translates, and the others reuse its files
        missing = cache.count_missing(_chunks(work, folder, recipe))
        if missing and checkpoint_folders(run / "checkpoints"):
            raise CheckpointError(
                f"{run}: the student was not trained on the translations of these corpora by {teacher} with beam size "
                f"{beam_size} (or files in {home / 'pieces'} are missing); restore teacher, beam size and corpora to "
                "resume, choose another --run, or start over with --fresh"
            )
        listener.say(f"{missing:,} sources to translate with {teacher}, beam {beam_size}")
        if recipe.data.dev:  # copied, so that one folder contains everything that the student reads
            pairs = read_examples(recipe.data.dev, folder, bad_lines=_bad_lines(recipe))
            _write_jsonl(home / "dev.jsonl", ({"source": source, "target": target} for source, target in pairs))
        cache.fill(_chunks(work, folder, recipe), missing, listener)
        for number, entry in enumerate(work):
            _write_jsonl(home / f"train-{number}.jsonl", cache.records(_chunks([entry], folder, recipe)))
        cache.remove_unused()
        about = {"teacher": str(teacher), "fingerprint": cache.teacher_key, "beam_size": beam_size}
        content = {**about, "corpora": [corpus.as_dict() for corpus in corpora]}
        atomic_write_text(home / "teacher.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return _student_recipe(recipe, home, keep_original)


class _Languages(TypedDict):
    """Language arguments of ``Translator.translate``."""

    source_language: str | None
    target_language: str | None


def _requested_languages(teacher: Path, translator: Translator, task: TaskConfig, corpus: Corpus) -> _Languages:
    """Return the language arguments with which the teacher translates a corpus."""
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
    """Return ``recipe`` with the distilled files in ``folder`` as its corpora."""

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


@dataclass(frozen=True)
class _PairChunk:
    """Consecutive pairs of a corpus, and the language arguments for translating their sources."""

    sources: list[str]
    targets: list[str]
    languages: _Languages


def _bad_lines(recipe: Recipe) -> BadLines:
    return BadLines(recipe.data.on_error, SKIP_HINT)


def _chunks(work: Iterable[tuple[Corpus, _Languages]], folder: Path, recipe: Recipe) -> Iterator[_PairChunk]:
    for corpus, languages in work:
        examples = read_examples(corpus, folder, bad_lines=_bad_lines(recipe))
        while pairs := list(islice(examples, _CHUNK_PAIRS)):
            sources, targets = zip(*pairs, strict=True)
            yield _PairChunk(list(sources), list(targets), languages)


class _TranslationCache:
    """Stored translations of chunks. A file's name is a hash of everything that determines its content."""

    def __init__(
        self, folder: Path, teacher: Path, translator: Translator, options: DecodingOptions, max_length: int
    ) -> None:
        files = (path for path in sorted(teacher.iterdir()) if path.suffix in (".json", ".safetensors"))
        hashed = [path for path in files if path.name != SHORTLIST_FILE]  # the teacher does not use a shortlist
        self.teacher_key = fingerprint([(path.name, checksum(path)) for path in hashed])
        self._folder, self._translator, self._options, self._max_length = folder, translator, options, max_length
        self._used: set[Path] = set()

    def path(self, chunk: _PairChunk) -> Path:
        """Return the file for the translations of a chunk, which need not exist."""
        source, target = chunk.languages["source_language"], chunk.languages["target_language"]
        key = (self.teacher_key, self._options.beam_size, self._max_length, target, chunk.sources)
        path = self._folder / f"{fingerprint(*key, *([source] if source else []))}.json"
        self._used.add(path)
        return path

    def read(self, chunk: _PairChunk) -> list[str] | None:
        """Return the translations of a chunk, or None if its file does not exist or is damaged."""
        try:
            targets = json.loads(self.path(chunk).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return targets if isinstance(targets, list) and len(targets) == len(chunk.sources) else None

    def count_missing(self, chunks: Iterable[_PairChunk]) -> int:
        """Return the number of sources that have no translation yet. Equal chunks are counted once."""
        return sum({self.path(chunk): len(chunk.sources) for chunk in chunks if self.read(chunk) is None}.values())

    def fill(self, chunks: Iterable[_PairChunk], total: int, listener: Listener) -> None:
        """Translate the chunks that have no file yet, ``total`` sources in all."""
        done, begin = 0, time.monotonic()
        said = begin
        for chunk in chunks:
            if self.read(chunk) is not None:
                continue
            self._translate(chunk)
            done += len(chunk.sources)
            listener.progress("sources translated", done)
            now = time.monotonic()
            if now - said >= _SAY_EVERY_S or done == total:
                said, rate = now, done / max(now - begin, 1e-9)
                left = timedelta(seconds=round((total - done) / rate))
                listener.say(f"translated {done:,} of {total:,} sources, {rate:,.0f}/s  ETA {left}")

    def _translate(self, chunk: _PairChunk) -> None:
        """Write the translations of a chunk. Sources that are too long have an empty translation."""
        sources = list(dict.fromkeys(chunk.sources))  # repeated sources are translated once
        bundle, limit = self._translator.bundle, self._max_length
        if bundle.model.max_length is not None:  # special tokens take some of the model's positions
            limit = min(limit, bundle.model.max_length - bundle.token_template.fill(**chunk.languages).source_overhead)
        lengths = map(len, bundle.source_tokenizer.encode_batch(list(map(bundle.normalized, sources))))
        short = [source if length <= limit else "" for source, length in zip(sources, lengths, strict=True)]
        translations = self._translator.translate(short, self._options, **chunk.languages, protect=False)
        texts = {source: translation.text for source, translation in zip(sources, translations, strict=True)}
        targets = [texts[source] for source in chunk.sources]
        atomic_write_text(self.path(chunk), json.dumps(targets, ensure_ascii=False))

    def records(self, chunks: Iterable[_PairChunk]) -> Iterator[dict[str, str]]:
        """Yield the source, translation and original target of each pair."""
        for chunk in chunks:
            targets = self.read(chunk)
            assert targets is not None
            for source, target, original in zip(chunk.sources, targets, chunk.targets, strict=True):
                yield {"source": source, "target": target, "original": original}

    def remove_unused(self) -> None:
        """Remove files that this call has not used, such as translations by other teachers and temporary files."""
        for path in set(self._folder.glob("*")) - self._used:
            path.unlink()
