"""Measure the values of each line that rules compare with their thresholds.

Each line has a *row*. It contains the keys by which repeated texts are found, the values, the languages and scripts of
the texts, and the repairs that were made. Apart from the texts to write, the second pass needs only the rows: neither
learning thresholds nor comparing lines needs the texts. A value that does not apply to a line is NaN, and no rule drops
a line because of a NaN.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.config import REPAIRS, RepairName, RuleName
from headway.corpus.cleaning.corpus_lines import CorpusKind, CorpusLine
from headway.corpus.cleaning.facts import count_fact_differences
from headway.corpus.cleaning.language import LanguageDetector, language_detector
from headway.corpus.cleaning.repairs import Repairer
from headway.corpus.cleaning.scripts import ScriptTable, language_scripts
from headway.corpus.cleaning.similarity import comparison_key, copy_similarity, repetition_share

VALUE_NAMES = (
    "is_held_out",
    "is_undecodable",
    "source_characters",
    "target_characters",
    "letters",
    "script",
    "copy",
    "language",
    "facts",
    "repetition",
)
ROW_DTYPE = np.dtype(
    [
        ("pair", "<u8"),
        ("source", "<u8"),
        ("target", "<u8"),
        ("values", "<f4", (len(VALUE_NAMES),)),
        ("source_language", "u1"),
        ("target_language", "u1"),
        ("source_script", "u1"),
        ("target_script", "u1"),
        ("repairs", "u1"),
        ("padding", "u1", (3,)),  # Base64 encodes three bytes as four characters
    ]
)
ROW_CHARACTERS = ROW_DTYPE.itemsize // 3 * 4
UNKNOWN_LANGUAGE = 255
_VALUE = {name: number for number, name in enumerate(VALUE_NAMES)}


def get_value(rows: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return the value with the given name, one of ``VALUE_NAMES``, of each row."""
    column: NDArray[np.float32] = rows["values"][:, _VALUE[name]]
    return column


def encode_rows(rows: NDArray[Any]) -> list[str]:
    """Encode each row as ``ROW_CHARACTERS`` ASCII characters (Base64)."""
    text = base64.b64encode(rows.tobytes()).decode("ascii")
    return [text[start : start + ROW_CHARACTERS] for start in range(0, len(text), ROW_CHARACTERS)]


def decode_rows(text: bytes) -> NDArray[Any]:
    """Decode the rows whose encoded forms are concatenated in ``text``."""
    rows: NDArray[Any] = np.frombuffer(base64.b64decode(text), dtype=ROW_DTYPE)
    return rows


def text_hash(text: str) -> int:
    """Return a 64-bit hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class MeasuredLines:
    """The repaired texts and the rows of lines.

    Attributes:
        texts: The repaired texts in each line.
        rows: The row of each line.
    """

    texts: list[tuple[str, ...]]
    rows: NDArray[Any]


@dataclass(frozen=True)
class Measurer:
    """Repairs and measures lines.

    Attributes:
        kind: The content of a line: a pair, a text, or a labeled text.
        languages: The languages of source and target, or of the text. None if a language is not known.
        repairs: The repairs to make.
        rules: The rules that will be applied. Values that only other rules need are not measured.
        held_out: Hashes of the texts that must not be in the corpus.
    """

    kind: CorpusKind
    languages: tuple[str | None, ...]
    repairs: Sequence[RepairName] = REPAIRS
    rules: Sequence[RuleName] = ()
    held_out: frozenset[int] = frozenset()
    _scripts: ScriptTable = field(default_factory=ScriptTable)

    @cached_property
    def _repairer(self) -> Repairer:
        return Repairer(self.repairs)

    @cached_property
    def _detector(self) -> LanguageDetector | None:
        return language_detector() if "language" in self.rules else None

    def load(self) -> None:
        """Load the packages and models that measuring needs.

        Raises:
            MissingPackageError: A repair or a rule needs a package that is not installed.
            ConfigError: A language is not supported.
        """
        self.measure([CorpusLine(("a",) * len(self.languages) + ("a",) * (self.kind == "labels"))])
        for code in self.languages:
            if code is not None and self._detector is not None:
                self._detector.column(code)

    def repair_texts(self, lines: Sequence[CorpusLine]) -> list[tuple[str, ...]]:
        """Return the repaired texts in lines, without labels. Lines without valid texts are skipped."""
        return [
            tuple([self._repairer.repair(text)[0] for text in line.texts[: len(self.languages)]])
            for line in lines
            if line.fault is None
        ]

    def measure(self, lines: Sequence[CorpusLine]) -> MeasuredLines:
        """Repair and measure lines."""
        rows = np.zeros(len(lines), dtype=ROW_DTYPE)
        rows["values"][:] = np.nan
        repairs = [self._repair(line) for line in lines]
        repaired = [texts for texts, _ in repairs]
        rows["repairs"] = [made for _, made in repairs]
        sides = [list(side) for side in zip(*repaired, strict=True)] or [[] for _ in self.languages]
        usable = np.array([line.fault is None and all(texts) for line, texts in zip(lines, repaired, strict=True)])
        set_value(rows, "is_undecodable", [line.fault is not None for line in lines])
        set_value(rows, "source_characters", [*map(len, sides[0])])
        if self.kind != "texts":
            set_value(rows, "target_characters", [*map(len, sides[1])])
        self._measure_keys(rows, sides)
        self._measure_scripts(rows, sides)
        self._measure_languages(rows, sides, usable)
        if "repetition" in self.rules:
            measured = [[_number(repetition_share(text)) for text in side] for side in sides[: len(self.languages)]]
            set_value(rows, "repetition", np.fmax.reduce(np.array(measured)))
        if self.kind == "pairs" and "facts" in self.rules:
            set_value(rows, "facts", [_number(count_fact_differences(*pair)) for pair in repaired])
        for name in ("letters", "script", "copy", "language", "facts", "repetition"):
            rows["values"][~usable, _VALUE[name]] = np.nan  # these rules do not apply to unusable lines
        return MeasuredLines(repaired, rows)

    def _repair(self, line: CorpusLine) -> tuple[tuple[str, ...], int]:
        """Return the repaired texts in a line, and the set of repairs that changed them."""
        if line.fault is not None:
            return line.texts, 0
        texts, made = list(line.texts), 0
        for side in range(len(self.languages)):  # a label is not changed
            texts[side], new = self._repairer.repair(texts[side])
            made |= new
        return tuple(texts), made

    def _measure_keys(self, rows: NDArray[Any], sides: Sequence[Sequence[str]]) -> None:
        keys = [[comparison_key(text) for text in side] for side in sides[: len(self.languages)]]
        hashes = [[text_hash(key) for key in side] for side in keys]
        rows["source"] = hashes[0]
        if self.kind == "texts":
            rows["pair"] = rows["source"]
        else:
            others = hashes[1] if self.kind == "pairs" else [text_hash(label) for label in sides[1]]
            rows["target"] = others
            rows["pair"] = _mixed(rows["source"], rows["target"])
        if self.kind == "pairs" and "copy" in self.rules:
            set_value(rows, "copy", [_number(copy_similarity(*pair)) for pair in zip(*keys, strict=True)])
        if self.held_out:
            held_out = [any(key in self.held_out for key in line) for line in zip(*hashes, strict=True)]
            set_value(rows, "is_held_out", held_out)

    def _measure_scripts(self, rows: NDArray[Any], sides: Sequence[Sequence[str]]) -> None:
        letters, shares = [], []
        for name, side, code in zip(("source_script", "target_script"), sides, self.languages, strict=False):
            counts = self._scripts.count(side)
            rows[name] = counts.main_scripts()
            letters.append(counts.letter_shares())
            if code is not None and (scripts := language_scripts(code)):
                shares.append(counts.letter_share_in(scripts))
        set_value(rows, "letters", np.fmin.reduce(np.array(letters)))
        if shares:
            set_value(rows, "script", np.fmin.reduce(np.array(shares)))

    def _measure_languages(self, rows: NDArray[Any], sides: Sequence[Sequence[str]], usable: NDArray[np.bool_]) -> None:
        rows["source_language"] = rows["target_language"] = UNKNOWN_LANGUAGE
        if self._detector is None:
            return
        chosen = []
        for name, side, code in zip(("source_language", "target_language"), sides, self.languages, strict=False):
            probabilities = self._detector.probabilities(side)
            rows[name] = np.where(usable, probabilities.argmax(axis=1), UNKNOWN_LANGUAGE)
            if code is not None:
                chosen.append(probabilities[:, self._detector.column(code)])
        if chosen:
            set_value(rows, "language", np.minimum.reduce(np.array(chosen)))


def set_value(rows: NDArray[Any], name: str, values: Sequence[float] | NDArray[np.float64]) -> None:
    """Set the value with the given name, one of ``VALUE_NAMES``, in each row."""
    rows["values"][:, _VALUE[name]] = values


def _number(measured: float | None) -> float:
    return np.nan if measured is None else measured


def _mixed(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of two hashes that depends on their order."""
    return (first * np.uint64(0x9E3779B97F4A7C15)) ^ (second + np.uint64(0x632BE59BD9B4E019))
