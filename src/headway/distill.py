"""Sequence-level knowledge distillation (Kim & Rush 2016, "Sequence-Level Knowledge Distillation", section 3.2).

The student learns from the teacher's best translation of each training source, found by beam search, in place of the
corpus's own: the mode of the teacher's distribution stands for the whole of it. That text is more regular than what
people wrote, so a smaller student learns more of it, and needs less search.

In the run folder stand

    distilled/train-0.jsonl    a pair a line, for each training corpus: source, target (the teacher's), original
    distilled/dev.jsonl        the development set as it was
    distilled/teacher.json     which teacher, how it searched, and what corpora it translated
    distilled/pieces/          translations of up to 2,048 sources each, for the next call

A piece is named after all that decides it: the teacher's files, the beam and the sources. So a killed command loses one
piece at most, and a changed teacher, beam or corpus can never meet stale translations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path

from headway.bundle import TaskConfig
from headway.data.readers import Corpus, read_examples
from headway.data.store import fingerprint
from headway.decode.options import DecodingOptions
from headway.errors import CheckpointError, ConfigError
from headway.hardware import choose_device
from headway.predict import Translator, load_translator
from headway.storage import atomic_write, checksum, locked
from headway.train.recipe import Recipe
from headway.train.report import Listener, Silence
from headway.train.snapshot import checkpoint_folders

__all__ = ["distill"]

_PIECE_PAIRS = 2048  # some seconds of work; enough sentences that those of like length fill a batch
_SAY_EVERY_S = 30.0


def distill(
    teacher: Path,
    recipe: Recipe,
    run: Path,
    *,
    beam_size: int = 4,
    keep_original: bool = False,
    listener: Listener | None = None,
) -> Recipe:
    """Translate the sources of all training corpora into ``run``/distilled, and return the student's recipe.

    That recipe is ``recipe`` with the distilled corpora in place of its own, or beside them with ``keep_original``;
    weights and all other options of a corpus stay. What an earlier call has translated is not translated again.

    A teacher that knows several target languages is asked for that of the corpus (``target_language``), or else for the
    task's; one that is told the source's is told the corpus's (``source_language``), or else its own default.

    A source longer than data.filter.max_length, counted in the teacher's tokens, is not translated; its distilled
    pair has an empty target, which training leaves out.

    Raises:
        BundleError: ``teacher`` is not a model folder.
        ConfigError: The teacher's languages are not the recipe's, or ``beam_size`` is out of range.
        DataError: A corpus cannot be read.
        CheckpointError: The student has begun to learn from other translations than these.
    """
    listener = listener or Silence()
    options = DecodingOptions.parse({"beam_size": beam_size}, "options")
    translator = load_translator(teacher, device=str(choose_device(recipe.training.device)), precision="float32")
    home, folder, corpora = run / "distilled", Path(recipe.data.folder), recipe.data.train
    languages = [_languages(teacher, translator, recipe.task, corpus) for corpus in corpora]
    for asked in languages:  # refuses a bad beam or language now, not after the corpora have been read
        translator.translate([], options, source_language=asked.source, target_language=asked.target)
    pieces = _Pieces(home / "pieces", teacher, translator, options, recipe.data.filter.max_length)
    with locked(home / "lock"):  # of several processes one translates; the others wait and find it done
        every = _pieces(corpora, languages, folder)
        missing = sum({pieces.path(each): len(each.sources) for each in every if pieces.read(each) is None}.values())
        if missing and checkpoint_folders(run / "checkpoints"):
            raise CheckpointError(
                f"{run}: its student has learned from other translations than {teacher} with beam {beam_size} gives "
                f"for these corpora (or {pieces.folder} has lost files); put teacher, beam and corpora back to go on, "
                "choose another --run, or start over with --fresh"
            )
        listener.say(f"{missing:,} sources to translate with {teacher}, beam {beam_size}")
        if recipe.data.dev:  # beside the corpora, so that one folder holds all that the student reads
            _write_pairs(home / "dev.jsonl", _pairs(recipe.data.dev, folder))
        progress = _TranslationProgress(missing, listener)
        for piece in _pieces(corpora, languages, folder):
            if pieces.read(piece) is None:
                pieces.write(piece)
                progress.add(len(piece.sources))
        for number, corpus in enumerate(corpora):
            _write_pairs(home / f"train-{number}.jsonl", _distilled(corpus, languages[number], folder, pieces))
        pieces.drop_stale()
        with atomic_write(home / "teacher.json") as aside:
            about = {"teacher": str(teacher), "fingerprint": pieces.teacher_key, "beam_size": beam_size}
            whole = {**about, "corpora": [corpus.as_dict() for corpus in corpora]}
            aside.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return _student(recipe, home, keep_original)


@dataclass(frozen=True)
class _Languages:
    """What a teacher is told; None where it has one language or is left to its default."""

    source: str | None
    target: str | None


def _languages(teacher: Path, translator: Translator, task: TaskConfig, corpus: Corpus) -> _Languages:
    """What to ask the teacher for."""
    has, target = translator.bundle.task, corpus.target_language or task.target_language
    several = bool(translator.target_languages)
    if has.source_language != task.source_language or not (several or has.target_language == target):
        raise ConfigError(
            f"{teacher} translates {has.source_language} to {has.target_language}, but the recipe asks for "
            f"{task.source_language} to {target} ({' + '.join(corpus.files)}); choose another teacher, or set "
            f"task.source_language = {has.source_language!r} and task.target_language = {has.target_language!r}"
        )
    told = corpus.source_language if translator.bundle.token_template.source_languages else None
    return _Languages(told, target if several else None)


def _student(recipe: Recipe, home: Path, keep_original: bool) -> Recipe:
    """The recipe that reads the files in ``home``."""

    def reading(corpus: Corpus, name: str, target: str) -> Corpus:
        return corpus.model_copy(update={"files": (f"{name}.jsonl",), "fields": ("source", target)})

    targets = ["target", "original"] if keep_original else ["target"]
    train = [
        reading(corpus, f"train-{number}", target)
        for target in targets
        for number, corpus in enumerate(recipe.data.train)
    ]
    dev = recipe.data.dev and reading(recipe.data.dev, "dev", "target")
    data = recipe.data.model_copy(update={"folder": str(home), "train": tuple(train), "dev": dev})
    return recipe.model_copy(update={"data": data})


def _write_pairs(path: Path, records: Iterable[dict[str, str]]) -> None:
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@dataclass(frozen=True)
class _Piece:
    """Sources to translate together."""

    sources: list[str]
    languages: _Languages


def _cut(corpus: Corpus, folder: Path) -> Iterator[list[tuple[str, ...]]]:
    """The examples of a corpus, some thousands at a time."""
    examples = read_examples(corpus, folder)
    while some := list(islice(examples, _PIECE_PAIRS)):
        yield some


def _pieces(corpora: Iterable[Corpus], languages: Iterable[_Languages], folder: Path) -> Iterator[_Piece]:
    for corpus, asked in zip(corpora, languages, strict=True):
        for some in _cut(corpus, folder):
            yield _Piece([source for source, _ in some], asked)


def _pairs(corpus: Corpus, folder: Path) -> Iterator[dict[str, str]]:
    for source, target in read_examples(corpus, folder):
        yield {"source": source, "target": target}


def _distilled(corpus: Corpus, asked: _Languages, folder: Path, pieces: _Pieces) -> Iterator[dict[str, str]]:
    for some in _cut(corpus, folder):
        targets = pieces.read(_Piece([source for source, _ in some], asked))
        assert targets is not None
        for (source, original), target in zip(some, targets, strict=True):
            yield {"source": source, "target": target, "original": original}


class _Pieces:
    """Translations in files that are named after all that decides them."""

    def __init__(
        self, folder: Path, teacher: Path, translator: Translator, options: DecodingOptions, max_length: int
    ) -> None:
        self.folder = folder
        decisive = [path for path in sorted(teacher.iterdir()) if path.suffix in (".json", ".safetensors")]
        self.teacher_key = fingerprint([(path.name, checksum(path)) for path in decisive])
        self._translator, self._options = translator, options
        self._max_length = max_length
        self._used: set[Path] = set()

    def read(self, piece: _Piece) -> list[str] | None:
        """The translations of a piece; None where they have not been written, or not whole."""
        try:
            targets = json.loads(self.path(piece).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return targets if isinstance(targets, list) and len(targets) == len(piece.sources) else None

    def write(self, piece: _Piece) -> None:
        """Translate a piece: each different text once, and one that is too long into an empty one."""
        different = list(dict.fromkeys(piece.sources))
        bundle, longest = self._translator.bundle, self._max_length
        source, target = piece.languages.source, piece.languages.target
        if bundle.model.max_length is not None:  # positions, of which the end symbol and a tag take some
            longest = min(
                longest,
                bundle.model.max_length
                - bundle.token_template.fill(source_language=source, target_language=target).source_extra,
            )
        lengths = map(len, bundle.source_tokenizer.encode_batch(different))
        short = [text if n <= longest else "" for text, n in zip(different, lengths, strict=True)]
        found = self._translator.translate(short, self._options, source_language=source, target_language=target)
        texts = {text: translation.text for text, translation in zip(different, found, strict=True)}
        with atomic_write(self.path(piece)) as aside:
            aside.write_text(json.dumps([texts[text] for text in piece.sources], ensure_ascii=False), encoding="utf-8")

    def drop_stale(self) -> None:
        """Remove what has not been asked for: other teachers' pieces, and what a kill has left."""
        for path in set(self.folder.iterdir()) - self._used:
            path.unlink()

    def path(self, piece: _Piece) -> Path:
        """Where the translations of a piece are, or will be."""
        told = piece.languages
        decisive = (self.teacher_key, self._options.beam_size, self._max_length, told.target, piece.sources)
        path = self.folder / f"{fingerprint(*decisive, *([told.source] if told.source else []))}.json"
        self._used.add(path)
        return path


class _TranslationProgress:
    """Tells how many of the missing sources are translated, and how long the rest will take."""

    def __init__(self, total: int, listener: Listener) -> None:
        self._total, self._listener = total, listener
        self._done = 0
        self._begin = self._said = time.monotonic()

    def add(self, count: int) -> None:
        """``count`` more are done."""
        self._done += count
        self._listener.work("sources translated", self._done)
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY_S or self._done == self._total:
            self._said = now
            rate = self._done / max(now - self._begin, 1e-9)
            left = timedelta(seconds=round((self._total - self._done) / rate))
            self._listener.say(f"translated {self._done:,} of {self._total:,} sources, {rate:,.0f}/s  ETA {left}")
