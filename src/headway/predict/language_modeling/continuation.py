"""The continuation of a prompt, either complete or as a stream of text or tokens."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from headway.notebook_html import DOUBT_COLOR, join_fragments, paragraph, shaded_words, text
from headway.predict.results import TokenAlternative, abbreviate
from headway.text.visible_tokens import make_visible

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt.

    Attributes:
        text: The new text, without the prompt, and without an incomplete character at the end.
        tokens: The new tokens as displayed, without EOS. They include the tokens that a stop string removed from the
            text, up to the token that completed the stop string.
        token_log_probabilities: The model's log-probability of each token, in nats, regardless of the options.
        finish_reason: "end" if the model generated EOS, "stop" if a stop string ended the text, "length" if the text
            reached the maximum length or, unless the context slides, the end of the context.
        ids: The ids of ``tokens``.
    """

    text: str
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    finish_reason: Literal["end", "stop", "length"]
    ids: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<Continuation: {abbreviate(self.text)}, {len(self.tokens):,} tokens, ended by {self.finish_reason}>"

    def _repr_html_(self) -> str:
        probabilities = zip(self.tokens, map(math.exp, self.token_log_probabilities), strict=True)
        words = [(make_visible(token), 1 - value, f"probability {value:.3f}") for token, value in probabilities]
        return join_fragments(
            paragraph(text(self.text)), paragraph(shaded_words(words, DOUBT_COLOR), note=True) if words else ""
        )


@dataclass(frozen=True)
class GeneratedToken:
    """A token that was generated.

    Attributes:
        token: The token as displayed.
        log_probability: The model's log-probability of the token, in nats, regardless of the options.
        alternatives: The most probable tokens at the token's position, best first. The token may be one of them.
        id: The token's id.
    """

    token: str
    log_probability: float
    alternatives: tuple[TokenAlternative, ...]
    id: int


@dataclass(frozen=True)
class StreamPart:
    """A part of a continuation.

    Attributes:
        text: The new final text. It is empty while the last character is incomplete, or while the text may be the
            beginning of a stop string.
        tokens: The tokens that were generated since the previous part.
    """

    text: str
    tokens: tuple[GeneratedToken, ...]


class ContinuationStream(Iterator[PartT]):
    """An iterator over the parts of a continuation while it is being generated.

    Attributes:
        continuation: The complete continuation. None until the iterator has ended.
    """

    def __init__(self, parts: Generator[StreamPart, None, Continuation]) -> None:
        self._parts = parts
        self.continuation: Continuation | None = None

    def _next_part(self) -> StreamPart:
        try:
            return next(self._parts)
        except StopIteration as end:
            self.continuation = self.continuation or end.value
            raise StopIteration from None

    def close(self) -> None:
        """Stop the generation."""
        self._parts.close()


class TextStream(ContinuationStream[str]):
    """An iterator over the text of a continuation while it is being generated."""

    def __next__(self) -> str:
        while not (text := self._next_part().text):
            pass
        return text


class TokenStream(ContinuationStream[StreamPart]):
    """An iterator over the tokens of a continuation while it is being generated, with the text that they complete."""

    def __next__(self) -> StreamPart:
        return self._next_part()
