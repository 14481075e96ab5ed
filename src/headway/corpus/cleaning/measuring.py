"""Measure the lines of a corpus: the first pass, run as a job.

The output for a line is one line: its repaired texts, separated by tabs, and its row in Base64
(:mod:`headway.corpus.cleaning.measures`). Backslashes, tabs and line ends in texts are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config import Config
from headway.corpus.cleaning.config import CleaningConfig
from headway.corpus.cleaning.corpus_lines import CorpusKind, CorpusLine, LineParser, line_format
from headway.corpus.cleaning.measures import (
    ROW_CHARACTERS,
    Measurer,
    decode_rows,
    encode_rows,
    text_hash,
)
from headway.corpus.cleaning.similarity import comparison_key
from headway.data.readers import read_byte_lines
from headway.jobs.line_map import ConvertedBatch, ConvertedLine, Line

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


class CleaningSettings(Config):
    """The settings that identify the cleaning of a corpus, together with its files.

    Attributes:
        kind: The content of a line: a pair, a text, or a labeled text.
        languages: The languages of source and target, or of the text. None if a language is not known.
        fields: The fields of records, or None for the default ones.
        held_out: Files with texts that must not be in the corpus.
        memories: Translation memories among the files of the corpus.
        model: A translation model from source to target, for the rule "cross_entropy", or None.
        reverse_model: A translation model from target to source.
        config: Repairs, rules and thresholds.
    """

    kind: CorpusKind
    languages: tuple[str | None, ...]
    fields: tuple[str, ...] | None = None
    held_out: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    model: str | None = None
    reverse_model: str | None = None
    config: CleaningConfig = CleaningConfig()

    @property
    def paths(self) -> list[Path]:
        """The files that results depend on."""
        return [
            Path(path) for path in (*self.held_out, *self.memories, self.model, self.reverse_model) if path is not None
        ]

    def check(self) -> None:
        """Load the packages and models that measuring needs.

        Raises:
            MissingPackageError: A package is not installed.
            ConfigError: A language is not supported.
        """
        self.measurer().load()

    def parser(self, path: Path) -> LineParser:
        """Return the parser for the lines of a file."""
        return LineParser.of(line_format(path), self.kind, self.fields)

    def measurer(self, held_out: frozenset[int] = frozenset()) -> Measurer:
        """Return the measurer for these settings."""
        return Measurer(self.kind, self.languages, self.config.repairs, self.config.rules, held_out)


def hash_held_out_texts(settings: CleaningSettings) -> frozenset[int]:
    """Return the hashes of the held-out texts, ignoring case and punctuation.

    Each line of a file is a text. For records, the texts are the fields except for the label.

    Raises:
        DataError: A file cannot be read.
    """
    repairer = settings.measurer()
    hashes = set[int]()
    for path in map(Path, settings.held_out):
        parser = settings.parser(path)
        for line in read_byte_lines(path):
            texts = repairer.repair_texts([parser.parse((line,))])
            hashes.update(text_hash(key) for text in sum(texts, ()) if (key := comparison_key(text)))
    return frozenset(hashes)


class MeasureMap:
    """The operation of the first pass, which repairs and measures lines.

    Args:
        settings: The cleaning settings.

    Attributes:
        processor: Empty, because results do not depend on the processor.
    """

    def __init__(self, settings: CleaningSettings) -> None:
        self._settings = settings
        self._measurer = settings.measurer(hash_held_out_texts(settings))
        self._measurer.load()
        self.processor: dict[str, Any] = {}

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the repaired texts and the row of each line."""
        parser = self._settings.parser(Path(location))
        measured = self._measurer.measure([parser.parse(line) for line in lines])
        return ConvertedBatch([*map(_converted, measured.texts, encode_rows(measured.rows))])

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Return the output for a line that cannot be measured. It is treated as undecodable."""
        texts = self._settings.parser(Path(location)).parse(line).texts
        measured = self._measurer.measure([CorpusLine(tuple(text[:0] for text in texts), reason)])
        return _converted(measured.texts[0], encode_rows(measured.rows)[0])


def _converted(texts: tuple[str, ...], row: str) -> ConvertedLine:
    return ConvertedLine("\t".join([*map(_escaped, texts), row]) + "\n")


def _escaped(text: str) -> str:
    if "\\" in text or not text.isprintable():
        for character, escape in _ESCAPES:
            text = text.replace(character, escape)
    return text


@dataclass(frozen=True)
class MeasuredChunk:
    """The output of the first pass for a chunk.

    Attributes:
        rows: The row of each line.
        output: The complete output.
        scores: For each rule that uses model scores, the score of each line. Empty if lines were not scored.
    """

    rows: NDArray[Any]
    output: bytes
    scores: Mapping[str, NDArray[np.float32]]

    @classmethod
    def parse(cls, output: bytes, scores: Mapping[str, NDArray[np.float32]]) -> MeasuredChunk:
        """Parse the output of the first pass for a chunk."""
        ends = np.flatnonzero(np.frombuffer(output, dtype=np.uint8) == ord("\n"))
        cells = ends[:, None] + np.arange(-ROW_CHARACTERS, 0)
        encoded = np.frombuffer(output, dtype=np.uint8)[cells]
        return cls(decode_rows(encoded.tobytes()), output, scores)

    def lines(self) -> list[bytes]:
        """Return the texts in each line, in UTF-8, escaped and separated by tabs."""
        return [line[: -ROW_CHARACTERS - 1] for line in self.output.split(b"\n")[:-1]]


def decode_texts(line: bytes) -> list[str]:
    """Return the texts in a line from :meth:`MeasuredChunk.lines`, without escapes."""
    texts = line.decode("utf-8", "surrogatepass").split("\t")
    if b"\\" not in line:
        return texts
    return [_unescaped(text) for text in texts]


def _unescaped(text: str) -> str:
    parts = text.split("\\\\")
    for character, escape in _ESCAPES[1:]:
        parts = [part.replace(escape, character) for part in parts]
    return "\\".join(parts)
