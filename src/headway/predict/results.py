"""What goes into a translator and what comes out of it: plain values, no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Alignment", "Alternative", "Candidate", "Flag", "ScoredTarget", "Source", "Translation", "WordAlignment"]

Flag = Literal["truncated", "repeated", "copied", "fell_back", "split"]


@dataclass(frozen=True)
class Source:
    """A text to translate, and what its translation must look like.

    Attributes:
        text: The text.
        prefix: How the translation begins. White space at its end is left out, for the next word brings its own.
        include: Phrases that the translation must hold, such as terminology; where one is a tuple, any one of these
            alternatives (inflected forms, say) will do.
        banned: Phrases that it must not hold.
    """

    text: str
    prefix: str = ""
    include: tuple[str | tuple[str, ...], ...] = ()
    banned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alignment:
    """Which target token comes from which source token.

    Attributes:
        source_tokens: The tokens of the source as a reader sees them, without language tag and end symbol.
        pairs: (source token, target token), both counted from 0; each target token has one.
        attention: For each target token its attention to each source token. What goes to the tag and to the end symbol
            is not in it, so a row sums to 1 at most.
    """

    source_tokens: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    attention: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class WordAlignment:
    """The words of source and target, and which of them hold tokens that are aligned: (source word, target word)."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Candidate:
    """One translation of a text.

    Attributes:
        text: The translation.
        score: log P(target | source) in nats, divided by the length penalty: what search ranks by.
        log_probability: log P(target | source) in nats.
        tokens: Its tokens as a reader sees them.
        ids: Their ids.
        token_log_probabilities: One for each token and one for the end symbol; they sum to ``log_probability``.
        flags: What is suspicious about it; see :mod:`headway.predict.quality`. "fell_back": a more probable one was
            passed over for its flags. "split": a sentence was too long for the model and was cut inside.
        unmet: Phrases of :attr:`Source.include` that it does not hold (of alternatives the first).
        banned: Phrases of :attr:`Source.banned` that it holds all the same.
        alignment: Where one was asked for.
        utility: Expected chrF against the other candidates, where these were ranked by it.

    The values of a text that was translated in several parts are sums (scores) or joined (tokens), and each part has an
    end symbol of its own among ``token_log_probabilities``.
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
    alignment: Alignment | None = None
    utility: float | None = None

    @property
    def token_probabilities(self) -> tuple[float, ...]:
        """The probability of each token given all before it, and that of the end symbol."""
        return tuple(math.exp(each) for each in self.token_log_probabilities)


@dataclass(frozen=True)
class Translation:
    """The best translation of a text, and the others that were asked for, best first (``candidates[0]`` is the
    best)."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The translation."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """Its score; see :class:`Candidate`."""
        return self.candidates[0].score

    @property
    def tokens(self) -> tuple[str, ...]:
        """Its tokens, as a reader sees them."""
        return self.candidates[0].tokens

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What is suspicious about it; see :class:`Candidate`."""
        return self.candidates[0].flags

    @property
    def alignment(self) -> Alignment | None:
        """Its alignment, where one was asked for."""
        return self.candidates[0].alignment


@dataclass(frozen=True)
class ScoredTarget:
    """How probable a given target is.

    Attributes:
        log_probability: log P(target | source) in nats, the end symbol included.
        tokens: The target's tokens as a reader sees them.
        token_log_probabilities: One for each token and one for the end symbol; they sum to ``log_probability``.
    """

    log_probability: float
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Alternative:
    """A token that may come next, as a reader sees it ("<eos>" ends the target), with its log-probability in nats."""

    token: str
    log_probability: float
