"""The inputs and results of translation as plain values, without tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeVar

from headway.errors import HeadwayError
from headway.notebook_html import DOUBT_COLOR, badge, join_fragments, paragraph, shaded_words, table, text

InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")
_SHOWN = 60  # maximum number of characters of a text that are shown in a line
Flag = Literal["truncated", "repeated", "copied", "unknown_source", "forced", "fell_back", "split"]


@dataclass(frozen=True)
class Source:
    """A text to translate, and requirements on its translation.

    Attributes:
        text: The text to translate.
        prefix: Text that the translation must begin with. Trailing white space is ignored.
        include: Phrases that the translation must contain as whole words, such as terminology. A tuple lists
            alternatives (inflected forms, for example), of which at least one must occur. An asterisk at an edge allows
            the phrase to be part of a longer word there: ``Haus*``, ``*haus``, ``*Haus*``. Write ``\\*`` for a literal
            asterisk.
        banned: Phrases that the translation must not contain.
        split_sentences: Whether the sentences of the text are translated one by one. Otherwise only texts that are too
            long for the model are split.
    """

    text: str
    prefix: str = ""
    include: tuple[str | tuple[str, ...], ...] = ()
    banned: tuple[str, ...] = ()
    split_sentences: bool = False


@dataclass(frozen=True)
class GlossaryTerm:
    """A glossary entry that applied to a text.

    Attributes:
        source: The source phrase of the entry.
        targets: The alternative target phrases.
        met: Whether the translation contains one of the target phrases as whole words.
    """

    source: str
    targets: tuple[str, ...]
    met: bool


@dataclass(frozen=True)
class Alignment:
    """The source token that each target token comes from.

    Attributes:
        source_tokens: The tokens of the source as displayed, without language tag and EOS.
        pairs: One pair (source token, target token) of indices for each target token, counted from 0.
        attention: The attention of each target token to each source token. Attention to the language tag and to EOS is
            omitted, so a row sums to at most 1. For a text of several parts, this is empty if the candidates have more
            than a million pairs of tokens, because the size of attention grows with the square of the length.
    """

    source_tokens: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    attention: tuple[tuple[float, ...], ...]

    def without_attention(self) -> Alignment:
        """Return the alignment without attention."""
        return replace(self, attention=())


@dataclass(frozen=True)
class WordAlignment:
    """The words of source and target, and the pairs (source word, target word) that contain aligned tokens."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    Attributes:
        text: The translation.
        score: log P(target | source) in nats, divided by the length penalty. Searches rank candidates by this score.
        log_probability: log P(target | source) in nats.
        tokens: The translation's tokens as displayed.
        ids: The ids of the tokens.
        token_log_probabilities: Log-probability of each token and of EOS. They sum to ``log_probability``.
        flags: Suspected errors; see :mod:`headway.predict.translation.quality`. Also "fell_back" if a more probable
            candidate was skipped because of its flags, and "split" if a sentence was too long for the model and had to
            be split.
        unmet: Phrases of :attr:`Source.include` that the translation does not contain as whole words. If a phrase has
            alternatives, the first one is listed.
        banned: Phrases of :attr:`Source.banned` that the translation contains nevertheless.
        glossary: The glossary entries that applied, and whether the translation satisfies them. None if there was no
            glossary.
        alignment: The translation's alignment, if one was requested.
        utility: Expected chrF against the other candidates, if the candidates were ranked by it.
        part_lengths: Number of tokens in each part, for a text that was translated in several parts. None means that
            there was one part.
        pivot: The intermediate translation in a third language, if no model translates the pair directly
            (:mod:`headway.predict.translation.pivot`). Then ``log_probability`` and ``score`` are log P(target, pivot |
            source), but the probabilities of tokens come from the second model.

    If a text was translated in several parts, scores are summed and tokens concatenated, and
    ``token_log_probabilities`` contains the EOS of each part.
    """

    text: str
    score: float
    log_probability: float
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...] = (0.0,)
    ids: tuple[int, ...] = ()
    flags: tuple[Flag, ...] = ()
    unmet: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    glossary: tuple[GlossaryTerm, ...] | None = None
    alignment: Alignment | None = None
    utility: float | None = None
    pivot: str | None = None
    part_lengths: tuple[int, ...] | None = None

    @property
    def token_probabilities(self) -> tuple[float, ...]:
        """The probability of each token and of EOS, given the previous tokens."""
        return tuple(math.exp(log_probability) for log_probability in self.token_log_probabilities)


@dataclass(frozen=True)
class Translation:
    """The candidate translations of a text, best first. The properties return the values of the best candidate.

    ``unlikely`` is True if the source is unlike the text that the model was calibrated on, so that the translation may
    be invented (see :mod:`headway.predict.translation.calibration`). It is None if the model is not calibrated, or was
    calibrated for other languages.
    """

    source: str
    candidates: tuple[Candidate, ...]
    unlikely: bool | None = None

    @property
    def text(self) -> str:
        """The translation."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """The translation's score; see :class:`Candidate`."""
        return self.candidates[0].score

    @property
    def tokens(self) -> tuple[str, ...]:
        """The translation's tokens as displayed."""
        return self.candidates[0].tokens

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Suspected errors; see :class:`Candidate`."""
        return self.candidates[0].flags

    @property
    def glossary(self) -> tuple[GlossaryTerm, ...] | None:
        """The glossary entries that applied; see :class:`Candidate`."""
        return self.candidates[0].glossary

    @property
    def alignment(self) -> Alignment | None:
        """The translation's alignment, if one was requested."""
        return self.candidates[0].alignment

    def __repr__(self) -> str:
        flags = "".join(f" [{flag}]" for flag in self._shown_flags)
        return f"<Translation: {abbreviate(self.source)} → {abbreviate(self.text)}, score {self.score:.2f}{flags}>"

    @property
    def _shown_flags(self) -> tuple[str, ...]:
        return (*self.flags, *(["unlikely"] if self.unlikely else []))

    def _repr_html_(self) -> str:
        best = self.candidates[0]
        tokens = zip((*best.tokens, "⏎"), best.token_probabilities, strict=False)
        words = [(token, 1 - probability, f"probability {probability:.3f}") for token, probability in tokens]
        flags = "".join(f" {badge(flag)}" for flag in self._shown_flags)
        others = [(candidate.text, f"{candidate.score:.2f}") for candidate in self.candidates[1:]]
        return join_fragments(
            paragraph(f"<b>{text(self.text)}</b>{flags}"),
            paragraph(text(self.source), note=True),
            paragraph(shaded_words(words, DOUBT_COLOR), note=True) if best.tokens else "",
            table(("other candidates", "score"), others, numbers=(1,)) if others else "",
        )


@dataclass(frozen=True)
class ScoredTarget:
    """The probability of a given target.

    Attributes:
        log_probability: log P(target | source) in nats, including EOS.
        tokens: The target's tokens as displayed.
        token_log_probabilities: Log-probability of each token and of EOS. They sum to ``log_probability``.
    """

    log_probability: float
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]


@dataclass(frozen=True)
class TokenAlternative:
    """A possible next token as displayed ("<eos>" ends the target), and its log-probability in nats."""

    token: str
    log_probability: float


def abbreviate(content: str) -> str:
    """Return a text in quotes, shortened so that it fits into a line."""
    shown = repr(content)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 2]}…{shown[-1]}"


def raise_first_error(results: Sequence[ResultT | HeadwayError], unit: str | None, first: int) -> list[ResultT]:
    """Return the results, or raise the first error among them.

    The error message begins with ``unit`` ("text", "line") and the number of the result, counted from ``first``. If
    ``unit`` is None, the message is unchanged.
    """
    for number, result in enumerate(results, start=first):
        if isinstance(result, HeadwayError):
            raise result if unit is None else result.with_location(f"{unit} {number}")
    return [result for result in results if not isinstance(result, HeadwayError)]


def process_lines(
    lines: Iterable[InputT], lines_ahead: int, process: Callable[[list[InputT]], list[ResultT | HeadwayError]]
) -> Iterator[ResultT]:
    """Yield the result for each line of a stream, in order. ``lines_ahead`` lines are processed at a time.

    Raises:
        HeadwayError: A line could not be processed. The message contains the line number.
    """
    remaining, first = iter(lines), 1
    while chunk := list(islice(remaining, lines_ahead)):
        yield from raise_first_error(process(chunk), "line", first)
        first += len(chunk)
