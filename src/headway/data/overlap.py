"""Count the development examples that also occur in the training data, because they inflate development scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headway.data.documents import END_OF_DOCUMENT

_REPORTED_EVERY = 1 << 14


@dataclass(frozen=True)
class Overlap:
    """Numbers of development examples that also occur in the training data.

    Attributes:
        examples: Number of development examples. In plain text, each nonblank line is an example.
        texts: Number of development examples whose text (for translation: source) occurs in the training data.
        pairs: Number of development examples that occur in the training data with the same target or label.
    """

    examples: int
    texts: int
    pairs: int

    def __str__(self) -> str:
        share = f"{self.texts:,} of {self.examples:,} development examples ({self.texts / self.examples:.1%})"
        same = f", {self.pairs:,} of them with the same target or label" if self.pairs < self.texts else ""
        return f"{share} are also in the training text{same}; scores on them are not representative of new text"


def count_overlap(
    dev: Iterable[tuple[str, ...]], train: Iterable[tuple[str, ...]], progress: Callable[[int], None]
) -> Overlap:
    """Count the examples of ``dev`` that are also in ``train``. Memory use grows only with ``dev``.

    An example is a text with its target or label, or a chunk of a document with an empty target. Documents are compared
    line by line. White space around a text is ignored. ``progress`` is called with the number of training examples read
    so far.
    """
    examples = [pair for example in dev for pair in _texts(example)]
    by_text: dict[str, set[str]] = {}
    for text, other in examples:
        by_text.setdefault(text, set()).add(other)
    seen_texts, seen_pairs = set[str](), set[tuple[str, str]]()
    for number, example in enumerate(train, start=1):
        for text, other in _texts(example):
            if text in by_text:
                seen_texts.add(text)
                if other in by_text[text]:
                    seen_pairs.add((text, other))
        if number % _REPORTED_EVERY == 0:
            progress(number)
    return Overlap(
        len(examples),
        sum(text in seen_texts for text, _ in examples),
        sum(example in seen_pairs for example in examples),
    )


def _texts(example: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    first, second = example
    if second:
        yield first.strip(), second.strip()
        return
    for line in first.removesuffix(END_OF_DOCUMENT).split("\n"):
        if text := line.strip():
            yield text, ""
