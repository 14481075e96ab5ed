"""Puts the translations of a text's parts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from headway.predict.phrases import groups
from headway.predict.planning import Plan
from headway.predict.results import Alignment, Candidate, Flag, Translation
from headway.predict.segment import join_parts

__all__ = ["join_translation"]


def join_translation(plan: Plan, found: Sequence[Sequence[Candidate]]) -> Translation:
    """The translation of a text, from the candidates of each of its parts, best first.

    The text's k-th candidate is made of the k-th of each part; a part that has fewer gives its last.
    """
    if not found:
        unmet = tuple(alternatives[0] for alternatives in groups(plan.source) if alternatives)
        return Translation(plan.source.text, (Candidate("", 0.0, 0.0, (), (), unmet=unmet),))
    count = max(map(len, found))
    chosen = ([candidates[min(k, len(candidates) - 1)] for candidates in found] for k in range(count))
    return Translation(plan.source.text, tuple(_join(plan, parts) for parts in chosen))


def _join(plan: Plan, parts: list[Candidate]) -> Candidate:
    flags: set[Flag] = {flag for part in parts for flag in part.flags}
    if any(part.inside for part in plan.parts):
        flags.add("split")
    whole = parts[0]
    if len(parts) > 1:
        whole = Candidate(
            text="",
            score=sum(part.score for part in parts),
            log_probability=sum(part.log_probability for part in parts),
            tokens=_side_by_side(plan, [part.tokens for part in parts]),
            token_log_probabilities=tuple(each for part in parts for each in part.token_log_probabilities),
            ids=tuple(token for part in parts for token in part.ids),
            banned=tuple(dict.fromkeys(phrase for part in parts for phrase in part.banned)),
            alignment=_join_alignments(plan, [part.alignment for part in parts]),
        )
    text = join_parts(list(plan.parts), [part.text for part in parts], plan.after)
    return replace(whole, text=text, flags=tuple(flag for flag in get_args(Flag) if flag in flags))


def _side_by_side(plan: Plan, tokens: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The tokens of all parts; the white space before a part goes to its first token, or its words would join."""
    spaced = ((part.before + own[0], *own[1:]) if own else () for part, own in zip(plan.parts, tokens, strict=True))
    return tuple(token for own in spaced for token in own)


def _join_alignments(plan: Plan, alignments: Sequence[Alignment | None]) -> Alignment | None:
    """Side by side: no token of one part attends to another part."""
    present = [alignment for alignment in alignments if alignment is not None]
    if not present:
        return None
    width = sum(len(alignment.source_tokens) for alignment in present)
    pairs: list[tuple[int, int]] = []
    rows: list[tuple[float, ...]] = []
    start = 0
    for alignment in present:
        here = len(alignment.source_tokens)
        pairs += [(source + start, target + len(rows)) for source, target in alignment.pairs]
        rows += [(*[0.0] * start, *row, *[0.0] * (width - start - here)) for row in alignment.attention]
        start += here
    tokens = _side_by_side(plan, [alignment.source_tokens for alignment in present])
    return Alignment(tokens, tuple(pairs), tuple(rows))
