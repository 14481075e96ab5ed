"""How probable given targets are, and what else could have come: probabilities without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.bundle import Bundle
from headway.decode import alternatives, score_targets
from headway.errors import DataError, HeadwayError, LengthError
from headway.predict.planning import encode_each
from headway.predict.results import Alternative, ScoredTarget
from headway.text.framing import Frame
from headway.text.tokenizer import BOS, EOS

__all__ = ["next_tokens", "score_texts"]


def score_texts(
    bundle: Bundle,
    model: Any,
    frame: Frame,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    positions: int | None,
    max_tokens: int,
) -> list[ScoredTarget | HeadwayError]:
    """The score of each target, or why it has none. Targets are read whole: nothing is split here.

    ``model`` is a Transformer or an ensemble of some; ``positions`` how long its sequences may be.
    """
    if len(sources) != len(targets):
        raise DataError(f"{len(sources):,} sources but {len(targets):,} targets; expected a target for each source")
    pairs = [
        _framed(frame, source, target, positions)
        for source, target in zip(
            encode_each(bundle.source_tokenizer, sources), encode_each(bundle.target_tokenizer, targets), strict=True
        )
    ]
    good = [pair for pair in pairs if not isinstance(pair, HeadwayError)]
    scores = iter(
        score_targets(
            model, [pair[0] for pair in good], [pair[1] for pair in good], bos=BOS, eos=EOS, max_tokens=max_tokens
        )
    )
    return [pair if isinstance(pair, HeadwayError) else _scored(bundle, frame, pair[1], next(scores)) for pair in pairs]


def next_tokens(
    bundle: Bundle, model: Any, frame: Frame, source: str, prefix: str, *, count: int, positions: int | None
) -> list[Alternative]:
    """The most probable tokens after ``prefix`` (white space at its end left out), best first."""
    tokenizer = bundle.target_tokenizer
    pair = _framed(frame, bundle.source_tokenizer.encode(source), tokenizer.encode(prefix.rstrip()), positions)
    if isinstance(pair, HeadwayError):
        raise pair
    found = alternatives(model, *pair, count, bos=BOS, eos=EOS)
    return [Alternative(tokenizer.display([each.token])[0], each.log_probability) for each in found]


def _framed(
    frame: Frame, source: list[int] | HeadwayError, target: list[int] | HeadwayError, positions: int | None
) -> tuple[list[int], list[int]] | HeadwayError:
    """Source and target as the model reads them."""
    if isinstance(source, HeadwayError):
        return source
    if isinstance(target, HeadwayError):
        return target
    pair = frame.source(source), [*frame.target_prefix, *target]
    for what, length in (("source", len(pair[0])), ("target", len(pair[1]) + 1)):
        if positions is not None and length > positions:
            return LengthError(
                f"a {what} of {length} tokens is longer than the {positions} positions that this model has learned; "
                "score its sentences one by one"
            )
    return pair


def _scored(bundle: Bundle, frame: Frame, target: list[int], scores: tuple[float, ...]) -> ScoredTarget:
    own = len(frame.target_prefix)
    return ScoredTarget(sum(scores[own:]), tuple(bundle.target_tokenizer.display(target[own:])), scores[own:])
