"""Measure how well a language model predicts texts."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from headway.data.documents import split_into_chunks
from headway.engine import Precision
from headway.errors import ConfigError, DataError
from headway.notebook_html import join_fragments, paragraph, table
from headway.text.base import UNK, TextTokenizer
from headway.version import __version__

_WORD = re.compile(r"\S+")
_MAX_CHARACTERS = 1 << 20  # maximum number of characters to process at a time


@dataclass(frozen=True)
class Perplexity:
    """A model's prediction quality on texts.

    Attributes:
        loss: Mean negative log-probability of a token, in nats.
        perplexity: exp(loss).
        word_perplexity: exp of the loss per word. Words are separated by white space.
        bits_per_byte: Bits per byte of UTF-8. Only this measure can be compared between models with different
            tokenizers.
        num_texts: Number of texts.
        num_tokens: Number of predicted tokens: all tokens of the texts, and one EOS per text.
        num_words: Number of words.
        num_bytes: Number of bytes in UTF-8.
        num_unknown: Number of unknown tokens. Each represents a character or word that the vocabulary lacks. The bits
            to encode it are not counted, so all these measures are too low if there are many unknown tokens.
        signature: The settings that the measures depend on: the context length, the stride, whether a window begins in
            the final state of the previous window (carried), and whether EOS is counted.
    """

    loss: float
    perplexity: float
    word_perplexity: float
    bits_per_byte: float
    num_texts: int
    num_tokens: int
    num_words: int
    num_bytes: int
    num_unknown: int
    signature: str

    def __repr__(self) -> str:
        return f"<Perplexity: {self.perplexity:.4g} per token, {self.bits_per_byte:.4f} bits per byte, {self._counts}>"

    def _repr_html_(self) -> str:
        rows = [
            ("loss, nats per token", f"{self.loss:.4f}"),
            ("perplexity per token", f"{self.perplexity:.4g}"),
            ("perplexity per word", f"{self.word_perplexity:.4g}"),
            ("bits per byte", f"{self.bits_per_byte:.4f}"),
        ]
        return join_fragments(
            table((), rows, numbers=(1,)), paragraph(f"{self._counts}; {escape(self.signature)}", note=True)
        )

    @property
    def _counts(self) -> str:
        return f"{self.num_texts:,} texts, {self.num_tokens:,} tokens"


@dataclass(frozen=True)
class MeasurementSettings:
    """The settings that measured probabilities depend on.

    Attributes:
        context: The model's context in tokens. None means that the model carries its state and needs no windows.
        stride: Tokens between the beginnings of two windows. None if there are no windows.
        precision: Precision of the measured model.
    """

    context: int | None
    stride: int | None
    precision: Precision

    @classmethod
    def choose(cls, context: int | None, stride: int | None, precision: Precision) -> MeasurementSettings:
        """Return the settings for a stride, which by default is half of the context.

        Raises:
            ConfigError: The stride is longer than the context, or the model has no windows.
        """
        if context is None:
            if stride is not None:
                raise ConfigError(
                    f"stride = {stride}: this model carries its state through the whole text and needs no windows; "
                    "omit stride"
                )
            return cls(None, None, precision)
        stride = context // 2 if stride is None else stride
        if not 1 <= stride <= context:
            raise ConfigError(f"stride = {stride}: expected from 1 to the model's context of {context} tokens")
        return cls(context, stride, precision)

    @property
    def signature(self) -> str:
        """The settings as text; see :attr:`Perplexity.signature`."""
        if self.context is None:
            windows = "context:all|stride:none|carried:yes"
        else:
            windows = f"context:{self.context}|stride:{self.stride}|carried:no"
        return f"{windows}|eos:yes|precision:{self.precision}|version:headway-{__version__}"


def measure_perplexity(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    settings: MeasurementSettings,
    log_probs: Callable[[Sequence[Sequence[int]]], list[Tensor]],
) -> Perplexity:
    """Measure how well a model predicts texts, about a million characters at a time.

    Args:
        texts: The texts to predict.
        tokenizer: The model's tokenizer.
        settings: The settings of the measurement, for the signature.
        log_probs: Function that returns the log-probability, in nats, of each token in each sequence and of EOS after
            the sequence.

    Raises:
        DataError: There is no text, or a text is not valid Unicode.
    """
    total, num_texts, num_tokens, num_words, num_bytes, num_unknown = 0.0, 0, 0, 0, 0, 0
    for batch in _batches(texts):
        encoded = _encoded(batch, tokenizer)
        for values in log_probs(encoded):
            total -= float(values.sum(dtype=torch.float64))
            num_tokens += len(values)
        num_texts += len(batch)
        num_words += sum(1 for text in batch for _ in _WORD.finditer(text))
        num_bytes += sum(len(text.encode()) for text in batch)
        num_unknown += sum(ids.count(UNK) for ids in encoded)
    if not num_bytes:
        raise DataError("no text to measure; expected at least one character")
    return Perplexity(
        loss=total / num_tokens,
        perplexity=math.exp(min(total / num_tokens, 700.0)),
        word_perplexity=math.exp(min(total / max(num_words, 1), 700.0)),
        bits_per_byte=total / math.log(2) / num_bytes,
        num_texts=num_texts,
        num_tokens=num_tokens,
        num_words=num_words,
        num_bytes=num_bytes,
        num_unknown=num_unknown,
        signature=settings.signature,
    )


def _encoded(texts: Sequence[str], tokenizer: TextTokenizer) -> list[Sequence[int]]:
    """Return the ids of each text. Very long texts are tokenized in parts, because tokenizing needs 100 bytes per byte.

    The parts end at line ends or before spaces, where tokens also end if the whole text is tokenized.
    """
    if max(map(len, texts), default=0) <= _MAX_CHARACTERS:
        return list(tokenizer.encode_batch(texts))
    rows: list[Sequence[int]] = []
    for text in texts:
        ids = array("I")
        for part in split_into_chunks(text, _MAX_CHARACTERS):
            ids.extend(tokenizer.encode(part))
        rows.append(ids)
    return rows


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of texts with about a million characters each."""
    batch, size = list[str](), 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _MAX_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch
