"""Labeled texts: read the file given by --data, and format a classification as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from headway.corpus.lines import one_line
from headway.errors import escape_unprintable

if TYPE_CHECKING:
    from headway.predict import Classification
    from headway.predict.classification.occlusion import Occlusion

_MAX_WORDS = 5  # number of words that --explain shows in text output
_MAX_CHARACTERS = 40  # maximum length of a group of words in text output


def read_labeled_file(
    data: Path, fields: str | None, labels: Sequence[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return the texts and labels in a file. ``data`` and ``fields`` are the values of the options --data and --fields.

    If ``labels`` is given, any other label is an error.
    """
    from headway.data.labels import read_labeled_texts
    from headway.data.readers import Corpus

    corpus = Corpus.parse({"files": [str(data)], "fields": fields.split(",") if fields else None}, "--data")
    examples = list(read_labeled_texts(corpus, Path(), labels))
    return [text for text, _ in examples], [label for _, label in examples]


def format_label_line(classification: Classification, why: Occlusion | None = None) -> str:
    """Return a line with the label, its probability and the words with the largest effects, separated by tabs."""
    cells = [escape_unprintable(classification.label), f"{classification.probability:.4f}"]
    if why is not None:
        effects = [(part.text, why.probability - part.probability) for part in why.parts]
        strongest = sorted(effects, key=lambda effect: -abs(effect[1]))[:_MAX_WORDS]
        cells += [f"{shorten(text, _MAX_CHARACTERS, placeholder='…')}:{effect:+.2f}" for text, effect in strongest]
    return "\t".join(one_line(cell).replace("\t", " ") for cell in cells) + "\n"
