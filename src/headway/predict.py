"""Text in, text out. One object owns the way between them; commands, Python and servers all go through it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import overload

import torch

from headway.bundle import Bundle
from headway.decode import Hypothesis, beam_search, greedy_search
from headway.errors import BundleError, ConfigError, LengthError
from headway.text.tokenizer import BOS, EOS, PAD, UNK, language_tag

__all__ = ["Candidate", "Translation", "Translator", "load"]

_CHUNK_LINES = 2048  # lines read ahead of a stream, to be sorted by length
_LOGITS_IN_MEMORY = 1 << 24  # of one decoding step: sentences x beam x vocabulary


@dataclass(frozen=True)
class Candidate:
    """One finished translation of a sentence.

    ``score`` is log P(target | source) in nats, divided by the length penalty; ``log_probability`` is not divided.
    """

    text: str
    score: float
    log_probability: float
    tokens: tuple[str, ...]


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


class Translator:
    """A trained model with its tokenizers.

    Args:
        bundle: The model.
        device: Where to run it; None leaves it where it is.
        max_tokens: Size of a batch while decoding: sentences x source tokens.
    """

    def __init__(self, bundle: Bundle, *, device: str | torch.device | None = None, max_tokens: int = 2048) -> None:
        self.bundle = bundle
        self.device = torch.device(device) if device else next(bundle.model.parameters()).device
        self.max_tokens = max_tokens
        bundle.model.to(self.device).eval()

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first signature wins
        self,
        text: str,
        *,
        beam_size: int = ...,
        length_penalty: float = ...,
        n_best: int = ...,
        target_language: str | None = ...,
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Sequence[str],
        *,
        beam_size: int = ...,
        length_penalty: float = ...,
        n_best: int = ...,
        target_language: str | None = ...,
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Sequence[str],
        *,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        n_best: int = 1,
        target_language: str | None = None,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of them in one go.

        Args:
            text: The source or sources. A blank one translates to an empty text.
            beam_size: Hypotheses kept at each step; 1 is greedy search.
            length_penalty: Exponent of the length penalty ((5 + length) / 6)^length_penalty; 0 ranks by probability.
            n_best: How many candidates to return for each text, at most ``beam_size``.
            target_language: Which of its ``target_languages`` a model with several translates into.
        """
        before = self._tag(target_language)
        self._check_options(beam_size, length_penalty, n_best)
        texts = [text] if isinstance(text, str) else list(text)
        found = self._search(texts, before, beam_size, length_penalty, n_best)
        results = [
            Translation(source, tuple(self._candidate(h) for h in hypotheses[:n_best]))
            for source, hypotheses in zip(texts, found, strict=True)
        ]
        return results[0] if isinstance(text, str) else results

    def translate_lines(
        self,
        lines: Iterable[str],
        *,
        beam_size: int = 4,
        length_penalty: float = 0.6,
        n_best: int = 1,
        target_language: str | None = None,
    ) -> Iterator[Translation]:
        """Translate a stream in its order, reading some lines ahead so that sentences of like length meet.

        The options are those of :meth:`translate`.

        Raises:
            LengthError: A line is longer than the model allows; the message has its number.
        """
        lines = iter(lines)
        done = 0
        while chunk := list(islice(lines, _CHUNK_LINES)):
            try:
                yield from self.translate(
                    chunk,
                    beam_size=beam_size,
                    length_penalty=length_penalty,
                    n_best=n_best,
                    target_language=target_language,
                )
            except _TooLongError as error:
                raise LengthError(f"line {done + error.index + 1}: {error}") from None
            done += len(chunk)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a model with several was trained to be asked for; empty for a model with one."""
        return tuple(tag.removeprefix("<2").removesuffix(">") for tag in self.bundle.source_tokenizer.tags)

    def _tag(self, target_language: str | None) -> list[int]:
        """The ids that ask for a language, in front of the source."""
        known = self.target_languages
        if target_language in known:
            return [self.bundle.source_tokenizer.tag_id(language_tag(target_language))]
        if known:
            asked = "none was given" if target_language is None else f"got {target_language!r}"
            raise ConfigError(
                f"this model translates into several languages and must be told which: {asked}; "
                f"give one of {', '.join(known)} (target_language=, on the command line --to)"
            )
        if target_language is not None:
            raise ConfigError(
                f"target language {target_language!r}: this model has one target language "
                f"({self.bundle.task.target_language}) and is not asked for it; leave it out"
            )
        return []

    def _check_options(self, beam_size: int, length_penalty: float, n_best: int) -> None:
        vocab_size = self.bundle.target_tokenizer.vocab_size
        if not 1 <= beam_size <= vocab_size:
            raise ConfigError(
                f"beam size {beam_size}: expected from 1 (greedy search) to {vocab_size}, the size of the vocabulary; "
                "the paper uses 4"
            )
        if not 1 <= n_best <= beam_size:
            raise ConfigError(f"{n_best} best translations: expected from 1 to the beam size, which is {beam_size}")
        if not 0 <= length_penalty < math.inf:
            raise ConfigError(
                f"length penalty {length_penalty}: expected 0 (rank by probability) or more; the paper uses 0.6"
            )

    def _search(
        self, texts: list[str], before: list[int], beam_size: int, alpha: float, n_best: int
    ) -> list[list[Hypothesis]]:
        sources = self._encode([text if text.strip() else "" for text in texts], before)
        results = [[Hypothesis((), 0.0, 0.0)] for _ in texts]
        order = sorted((index for index, ids in enumerate(sources) if ids), key=lambda index: len(sources[index]))
        most = max(1, _LOGITS_IN_MEMORY // (beam_size * self.bundle.target_tokenizer.vocab_size))
        for batch in _batches(order, sources, self.max_tokens, most):
            found = self._search_batch([sources[index] for index in batch], beam_size, alpha, n_best)
            for index, hypotheses in zip(batch, found, strict=True):
                if not hypotheses:
                    raise BundleError("the model gives no finite probabilities: its weights are damaged")
                results[index] = hypotheses
        return results

    def _encode(self, texts: list[str], before: list[int]) -> list[list[int]]:
        encoded = [ids and before + ids for ids in self.bundle.source_tokenizer.encode_batch(texts)]
        limit = self.bundle.model.max_length
        for index, ids in enumerate(encoded):
            if limit is not None and len(ids) + 1 > limit:
                raise _TooLongError(index, len(ids) + 1, limit)
        return encoded

    def _search_batch(
        self, sources: list[list[int]], beam_size: int, alpha: float, n_best: int
    ) -> list[list[Hypothesis]]:
        width = max(map(len, sources)) + 1
        rows = [[*ids, EOS] + [PAD] * (width - len(ids) - 1) for ids in sources]
        source = torch.tensor(rows, device=self.device)
        limits = [self._limit(len(ids)) for ids in sources]
        model = self.bundle.model
        forbidden = (PAD, BOS, UNK)
        if beam_size == 1:
            greedy = greedy_search(model, source, limits, begin=BOS, end=EOS, alpha=alpha, forbidden=forbidden)
            return [[hypothesis] for hypothesis in greedy]
        return beam_search(
            model,
            source,
            limits,
            begin=BOS,
            end=EOS,
            beam_size=beam_size,
            alpha=alpha,
            n_best=n_best,
            forbidden=forbidden,
        )

    def _limit(self, source_length: int) -> int:
        """The paper's maximum output length, input length + 50 (section 6.1), within what the positions allow."""
        limit = self.bundle.model.max_length
        return source_length + 50 if limit is None else min(source_length + 50, limit - 1)

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        tokenizer = self.bundle.target_tokenizer
        return Candidate(
            tokenizer.decode(hypothesis.tokens),
            hypothesis.score,
            hypothesis.log_probability,
            tuple(tokenizer.display(hypothesis.tokens)),
        )


class _TooLongError(LengthError):
    """The text at ``index`` of a list is longer than the model's positions."""

    def __init__(self, index: int, length: int, limit: int) -> None:
        super().__init__(
            f"a source of {length} tokens is longer than the {limit} positions that this model has learned; "
            "split it into sentences, or train with positions = 'sinusoidal', which have no limit"
        )
        self.index = index


def _batches(order: list[int], sources: list[list[int]], max_tokens: int, most: int) -> Iterator[list[int]]:
    """Cut ``order``, which rises in length: at most ``most`` sentences, ``max_tokens`` with their padding."""
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) == most or (len(batch) + 1) * (len(sources[index]) + 1) > max_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def load(folder: str | Path, *, device: str | None = None) -> Translator:
    """The model in ``folder``, ready to translate."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Translator(Bundle.load(Path(folder)), device=device)
