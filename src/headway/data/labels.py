"""Encode labels as tokens: the target of a text is a single token for its class, so classification can use token
stores.

Class c is token c + 1, because token 0 is padding. There is no end symbol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from headway.config import format_list, spelling_hint
from headway.data.bad_lines import SKIP_HINT, BadLines, OnError
from headway.data.readers import Corpus, read_examples
from headway.errors import DataError
from headway.text.corpus_encoder import PackedIds
from headway.text.normalization import normalize

_FIELDS = ("label", "text")


@dataclass(frozen=True)
class LabelEncoder:
    """Encodes each label as a token, repeated for each stored segmentation of its text."""

    labels: tuple[str, ...]
    num_segmentations: int = 1

    @property
    def vocab_size(self) -> int:
        """The number of token ids: one per class, and one for padding."""
        return len(self.labels) + 1

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the token id of each label."""
        ids = np.array([self._ids[text] for text in texts], np.uint32).repeat(self.num_segmentations)
        return PackedIds(ids, np.ones(len(ids), np.int64))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels, start=1)}


def read_labeled_texts(
    corpus: Corpus, folder: Path, labels: Sequence[str] | None = None, *, bad_lines: BadLines | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (text, label) for each example. By default, the label is the first column, or the field "label".

    Labels are normalized (:func:`headway.text.normalization.normalize`) or, if ``labels`` is not None, replaced with
    their spelling in ``labels``.

    Args:
        corpus: The corpus to read.
        folder: Base of relative file names.
        labels: Accepted labels. None accepts any label.
        bad_lines: Handler for invalid lines. By default, they raise an error.

    Raises:
        DataError: A file cannot be read, or the label of an example is missing or unknown.
    """
    files = corpus.shown_files
    known = None if labels is None else {normalize(label): label for label in labels}
    for number, (label, text) in enumerate(read_examples(corpus, folder, _FIELDS, bad_lines=bad_lines), start=1):
        label = normalize(label)
        if not label:
            raise DataError(f"{files}, example {number:,}: the label is empty; expected a label and a text")
        if known is not None and label not in known:
            raise DataError(
                f"{files}, example {number:,}: the label {label!r} is not one of the model's labels; "
                f"{spelling_hint(label, known.values())}"
            )
        yield text, label if known is None else known[label]


def count_labels(corpora: Sequence[Corpus], folder: Path, on_error: OnError = "refuse") -> dict[str, int]:
    """Return the number of non-empty texts per label. Labels are sorted; numeric labels are sorted by value.

    Raises:
        DataError: All examples have the same label, all texts of a label are empty, or a file cannot be read.
    """
    counts = Counter[str]()
    for corpus in corpora:
        for text, label in read_labeled_texts(corpus, folder, bad_lines=BadLines(on_error, SKIP_HINT)):
            counts[label] += bool(text.strip())
    files = ", ".join(corpus.shown_files for corpus in corpora)
    if not counts:
        raise DataError(f"{files}: no examples; expected examples with a label and a text")
    if bare := [label for label, count in counts.items() if not count]:
        raise DataError(
            f"{files}: all texts of the label{'s' if len(bare) > 1 else ''} {format_list(bare)} are empty; remove "
            "these examples, or add texts"
        )
    if len(counts) < 2:
        raise DataError(
            f"{files}: every example has the label {next(iter(counts))!r}; expected at least two labels (check that "
            "the label is in the first column or named in fields)"
        )
    return {label: counts[label] for label in sorted(counts, key=_by_number)}


def _by_number(label: str) -> tuple[int, str]:
    return (int(label), label) if label.isascii() and label.isdecimal() else (0, label)
