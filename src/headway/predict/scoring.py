"""Score given targets, and list the tokens that could come next: probabilities without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.bundle import Bundle
from headway.decode import alternatives, score_targets
from headway.errors import DataError, HeadwayError, LengthError
from headway.predict.prepare_requests import encode_each
from headway.predict.results import Alternative, ScoredTarget
from headway.text.framing import Frame
from headway.text.tokenizer import BOS, EOS

__all__ = ["next_tokens", "score_texts"]


def score_texts(
    bundle: Bundle, model: Any, frame: Frame, sources: Sequence[str], targets: Sequence[str], *, max_tokens: int
) -> list[ScoredTarget | HeadwayError]:
    """Return the score of each target, or why it cannot be scored. Texts are not split.

    ``model`` is the model of ``bundle``, or an ensemble with its tokenizers.
    """
    if len(sources) != len(targets):
        raise DataError(f"{len(sources):,} sources but {len(targets):,} targets; expected a target for each source")
    encoded = encode_each(bundle.source_tokenizer, sources), encode_each(bundle.target_tokenizer, targets)
    pairs = [_framed(frame, *pair, model.max_length) for pair in zip(*encoded, strict=True)]
    good = [pair for pair in pairs if not isinstance(pair, HeadwayError)]
    rows = [source for source, _ in good], [target for _, target in good]
    scores = iter(score_targets(model, *rows, bos=BOS, eos=EOS, max_tokens=max_tokens))
    return [pair if isinstance(pair, HeadwayError) else _scored(bundle, frame, pair[1], next(scores)) for pair in pairs]


def next_tokens(bundle: Bundle, model: Any, frame: Frame, source: str, prefix: str, *, count: int) -> list[Alternative]:
    """Return the most probable tokens after ``prefix``, best first. White space at the end of the prefix is ignored."""
    tokenizer = bundle.target_tokenizer
    ids = bundle.source_tokenizer.encode(source), tokenizer.encode(prefix.rstrip())
    pair = _framed(frame, *ids, model.max_length)
    if isinstance(pair, HeadwayError):
        raise pair
    found = alternatives(model, *pair, count, bos=BOS, eos=EOS)
    return [Alternative(tokenizer.display([each.token])[0], each.log_probability) for each in found]


def _framed(
    frame: Frame, source: list[int] | HeadwayError, target: list[int] | HeadwayError, max_length: int | None
) -> tuple[list[int], list[int]] | HeadwayError:
    """Return source and target with their special tokens, or why the model cannot read them."""
    if isinstance(source, HeadwayError):
        return source
    if isinstance(target, HeadwayError):
        return target
    pair = frame.source(source), [*frame.target_prefix, *target]
    for what, length in (("source", len(pair[0])), ("target", len(pair[1]) + 1)):
        if max_length is not None and length > max_length:
            return LengthError(
                f"a {what} of {length} tokens is longer than the {max_length} positions that this model has learned; "
                "score its sentences one by one"
            )
    return pair


def _scored(bundle: Bundle, frame: Frame, target: list[int], scores: tuple[float, ...]) -> ScoredTarget:
    own = len(frame.target_prefix)
    return ScoredTarget(sum(scores[own:]), tuple(bundle.target_tokenizer.display(target[own:])), scores[own:])
