"""The continuation of a prompt: whole, or as a stream of its text or its tokens."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from headway.notebook_html import DOUBT_COLOR, join_fragments, paragraph, shaded_words, text
from headway.predict.results import TokenAlternative, shortened
from headway.text.visible_tokens import make_visible

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt.

    Attributes:
        text: The new text, without the prompt, and without an incomplete character at the end.
        tokens: The new tokens as displayed, without EOS. They include the tokens that a stop string removed from the
            text, up to the token that completed the stop string.
        token_log_probabilities: Log-probability of each token, in nats, as the model predicts it, whatever the options.
        finish_reason: Whether the model ended the text, a stop string, or the maximum length: that of the options or,
            without sliding, of the context.
        ids: The ids of ``tokens``.
    """

    text: str
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    finish_reason: Literal["end", "stop", "length"]
    ids: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<Continuation: {shortened(self.text)}, {len(self.tokens):,} tokens, ended by {self.finish_reason}>"

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
        log_probability: The token's log-probability under the model in nats, regardless of the options.
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
        text: The text that has become final. It is empty while the last character is incomplete, or while the text
            may be the beginning of a stop string.
        tokens: The tokens that were generated since the last part.
    """

    text: str
    tokens: tuple[GeneratedToken, ...]


class ContinuationStream(Iterator[PartT]):
    """A continuation as it is generated.

    Attributes:
        continuation: The whole continuation. None until the iterator has ended.
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
        """End the generation."""
        self._parts.close()


class TextStream(ContinuationStream[str]):
    """The text of a continuation as it is generated: an iterator over its parts."""

    def __next__(self) -> str:
        while not (text := self._next_part().text):
            pass
        return text


class TokenStream(ContinuationStream[StreamPart]):
    """The tokens of a continuation as they are generated, with the text that they complete."""

    def __next__(self) -> StreamPart:
        return self._next_part()
