"""Merge the translations of a text's parts into the translation of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from headway.errors import ConfigError
from headway.predict.phrases import groups
from headway.predict.prepare_requests import TranslationPlan
from headway.predict.results import Alignment, Candidate, Flag, GlossaryTerm, Translation

__all__ = ["merge_parts"]


def merge_parts(plan: TranslationPlan, found: Sequence[Sequence[Candidate]]) -> Translation | ConfigError:
    """Return the translation of a text, from the candidates of each of its parts, or an error if a part has none.

    The k-th candidate of the text consists of the k-th candidate of each part, or the last one of a part that has
    fewer.
    """
    if not all(found):
        return ConfigError(
            "no target is left: banned phrases, min_length, no_repeat_ngram and the like exclude every one; ask for "
            "less"
        )
    if not found:
        unmet = tuple(alternatives[0] for alternatives in groups(plan.source) if alternatives)
        return Translation(plan.source.text, (Candidate("", 0.0, 0.0, (), (), unmet=unmet),))
    count = max(map(len, found))
    chosen = ([candidates[min(k, len(candidates) - 1)] for candidates in found] for k in range(count))
    return Translation(plan.source.text, tuple(_merge(plan, parts) for parts in chosen))


def _merge(plan: TranslationPlan, parts: list[Candidate]) -> Candidate:
    whole = parts[0]
    if len(parts) > 1:
        whole = Candidate(
            text="",
            score=sum(part.score for part in parts),
            log_probability=sum(part.log_probability for part in parts),
            tokens=_concatenate(plan, [part.tokens for part in parts]),
            token_log_probabilities=tuple(each for part in parts for each in part.token_log_probabilities),
            ids=tuple(token for part in parts for token in part.ids),
            banned=tuple(dict.fromkeys(phrase for part in parts for phrase in part.banned)),
            glossary=_concatenate_terms([part.glossary for part in parts]),
            alignment=_merge_alignments(plan, [part.alignment for part in parts if part.alignment is not None]),
        )
    text = "".join(part.before + each.text for part, each in zip(plan.parts, parts, strict=True))
    flags: set[Flag] = {flag for part in parts for flag in part.flags}
    if any(part.inside for part in plan.parts):
        flags.add("split")
    ordered = tuple(flag for flag in get_args(Flag) if flag in flags)
    return replace(whole, text=text + plan.trailing_whitespace, flags=ordered)


def _concatenate(plan: TranslationPlan, tokens: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the tokens of all parts. The first token of a part gets the white space before it, to separate words."""
    spaced = ((part.before + own[0], *own[1:]) if own else () for part, own in zip(plan.parts, tokens, strict=True))
    return tuple(token for own in spaced for token in own)


def _concatenate_terms(glossaries: Sequence[tuple[GlossaryTerm, ...] | None]) -> tuple[GlossaryTerm, ...] | None:
    """Return the glossary terms of all parts, or None if there was no glossary."""
    known = [terms for terms in glossaries if terms is not None]
    return tuple(term for terms in known for term in terms) if known else None


def _merge_alignments(plan: TranslationPlan, alignments: Sequence[Alignment]) -> Alignment | None:
    """Merge alignments into a block-diagonal one: no token of one part attends to another part."""
    if not alignments:
        return None
    width = sum(len(alignment.source_tokens) for alignment in alignments)
    pairs: list[tuple[int, int]] = []
    rows: list[tuple[float, ...]] = []
    start = 0
    for alignment in alignments:
        count = len(alignment.source_tokens)
        pairs += [(source + start, target + len(rows)) for source, target in alignment.pairs]
        rows += [(*[0.0] * start, *row, *[0.0] * (width - start - count)) for row in alignment.attention]
        start += count
    tokens = _concatenate(plan, [alignment.source_tokens for alignment in alignments])
    return Alignment(tokens, tuple(pairs), tuple(rows))
