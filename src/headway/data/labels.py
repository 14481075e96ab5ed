"""Labels as tokens: a text's class is a target of one token, so that classification needs no store of its own.

Class c is token c + 1, since 0 is padding; no end symbol follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headway.config import listed, nearest
from headway.data.readers import Corpus, read_examples
from headway.errors import DataError
from headway.text.packed import Packed

__all__ = ["LabelEncoder", "count_labels", "read_labelled"]

_FIELDS = ("label", "text")


@dataclass(frozen=True)
class LabelEncoder:
    """The token of each label, once for each of ``segmentations`` of its text."""

    labels: tuple[str, ...]
    segmentations: int = 1

    @property
    def vocab_size(self) -> int:
        """How many ids there are: the classes, and padding."""
        return len(self.labels) + 1

    def encode(self, texts: Sequence[str]) -> Packed:
        """Each label's token."""
        ids = np.array([self._ids[text] for text in texts], np.uint32).repeat(self.segmentations)
        return Packed(ids, np.ones(len(ids), np.int64))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels, start=1)}


def read_labelled(corpus: Corpus, folder: Path, labels: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield (text, label) of each example; a file has the label first, or in a field of that name.

    White space around a label does not count.

    Args:
        corpus: What to read.
        folder: Where relative file names start.
        labels: Those that may occur; None: any.

    Raises:
        DataError: A file cannot be read, or an example has no label, or an unknown one.
    """
    files = " + ".join(corpus.files)
    known = None if labels is None else set(labels)
    for number, (label, text) in enumerate(read_examples(corpus, folder, names=_FIELDS), start=1):
        label = label.strip()
        if not label:
            raise DataError(f"{files}, example {number:,}: the label is empty; expected a label and a text")
        if known is not None and label not in known:
            raise DataError(
                f"{files}, example {number:,}: the label {label!r} is not one of the model's; {nearest(label, known)}"
            )
        yield text, label


def count_labels(corpora: Sequence[Corpus], folder: Path) -> dict[str, int]:
    """How many texts each label has that are not empty, in the order of their names; numbers are ordered as numbers.

    Raises:
        DataError: All examples have the same label, a label has empty texts alone, or a file cannot be read.
    """
    counts = Counter[str]()
    for corpus in corpora:
        for text, label in read_labelled(corpus, folder):
            counts[label] += bool(text.strip())
    files = ", ".join(file for corpus in corpora for file in corpus.files)
    if not counts:
        raise DataError(f"{files}: no examples; expected a label and a text in each")
    if bare := [label for label, count in counts.items() if not count]:
        raise DataError(
            f"{files}: there is no text for the label{'s' if len(bare) > 1 else ''} {listed(bare)}: all of "
            f"{'their' if len(bare) > 1 else 'its'} examples are empty; remove them, or give them texts"
        )
    if len(counts) < 2:
        raise DataError(
            f"{files}: every example has the label {next(iter(counts))!r}; to tell texts apart takes two labels or "
            "more (is the label in the first column, or named in fields?)"
        )
    return {label: counts[label] for label in sorted(counts, key=_by_number)}


def _by_number(label: str) -> tuple[int, str]:
    return (int(label), label) if label.isascii() and label.isdecimal() else (0, label)
