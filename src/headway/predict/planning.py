"""From texts to what search is asked: cut what is too long, encode, frame, and check every text by itself.

A text that cannot be translated becomes an error in its place, so that the others can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.bundle import Bundle
from headway.decode import DecodingOptions
from headway.decode.request import Request, check_request
from headway.errors import ConfigError, DataError, HeadwayError, LengthError
from headway.predict.phrases import banned_ids, check_phrases, include_ids, prefix_ids
from headway.predict.results import Source
from headway.predict.segment import Part, split_text
from headway.text.framing import Frame
from headway.text.interface import TextTokenizer
from headway.text.tokenizer import EOS

__all__ = ["Job", "Limits", "Plan", "checked_plan", "encode_each", "is_possible", "plan_texts"]

MORE_THAN_SOURCE = 50  # the paper's maximum output length is input length + 50 (section 6.1)


@dataclass(frozen=True)
class Limits:
    """How long sequences may get, in tokens.

    Attributes:
        source: A text over it, frame included, is split.
        target: Most tokens of a target, the end symbol not counted; None: the paper's source length + 50.
        positions: Longest sequence, with its end or begin symbol, that the model has positions for; None: any.
        language: The sources' language, as a BCP 47 tag: by its rules a text is split.
    """

    source: int
    target: int | None
    positions: int | None
    language: str


@dataclass(frozen=True)
class Job:
    """A part of a text, ready to be searched for.

    Attributes:
        source: The part, with the phrases that hold for it.
        ids: Its tokens, without frame.
        request: What search is asked.
    """

    source: Source
    ids: tuple[int, ...]
    request: Request


@dataclass(frozen=True)
class Plan:
    """How a text is translated: a job for each part, none for a blank text; ``after`` is white space at its end."""

    source: Source
    parts: tuple[Part, ...]
    jobs: tuple[Job, ...]
    after: str = ""


def plan_texts(sources: Sequence[Source], bundle: Bundle, frame: Frame, limits: Limits) -> list[Plan | HeadwayError]:
    """The plan of each text, or what is wrong with it."""
    blank = ["" if not source.text.strip() else source.text for source in sources]
    encoded = encode_each(bundle.source_tokenizer, blank)
    return [_plan(source, ids, bundle, frame, limits) for source, ids in zip(sources, encoded, strict=True)]


def encode_each(tokenizer: TextTokenizer, texts: Sequence[str]) -> list[list[int] | HeadwayError]:
    """The ids of each text, or why it has none."""
    try:
        return list(tokenizer.encode_batch(texts))
    except DataError:  # of one of them
        return [_encoded(tokenizer, text) for text in texts]


def _encoded(tokenizer: TextTokenizer, text: str) -> list[int] | HeadwayError:
    try:
        return tokenizer.encode(text)
    except DataError as error:
        return DataError(str(error).removeprefix("text 1, "))


def _plan(
    source: Source, ids: list[int] | HeadwayError, bundle: Bundle, frame: Frame, limits: Limits
) -> Plan | HeadwayError:
    if isinstance(ids, HeadwayError):
        return ids
    if not ids:
        return Plan(source, (), ())
    tokenizer, extra = bundle.source_tokenizer, frame.source_extra
    try:
        check_phrases(source)
        if len(ids) + extra <= limits.source:
            return Plan(source, (Part(source.text, ""),), (_job(source, ids, bundle, frame, limits),))
        parts, after = split_text(
            source.text, limits.language, lambda text: len(tokenizer.encode(text)) + extra, limits.source
        )
        if source.include and len(parts) > 1:
            raise ConfigError(
                f"include: a text of {len(ids) + extra} tokens is translated in {len(parts)} parts, and which of them "
                "is to hold the phrases is not said; give its sentences one by one"
            )
        jobs = [
            _job(_for_part(source, part.text, number), tokenizer.encode(part.text), bundle, frame, limits)
            for number, part in enumerate(parts)
        ]
        return Plan(source, tuple(parts), tuple(jobs), after)
    except HeadwayError as error:
        return error


def checked_plan(plan: Plan | HeadwayError, options: DecodingOptions) -> Plan | HeadwayError:
    """The plan, or why search would refuse it: refused there, it would stop all texts of its batch."""
    if isinstance(plan, Plan):
        try:
            for job in plan.jobs:
                check_request(job.request, options, EOS)
        except ConfigError as error:
            return error
    return plan


def is_possible(request: Request, options: DecodingOptions) -> bool:
    """Whether search would not refuse it."""
    try:
        check_request(request, options, EOS)
    except ConfigError:
        return False
    return True


def _for_part(source: Source, text: str, number: int) -> Source:
    """What holds for a part: the translation's prefix is that of the first."""
    return replace(source, text=text, prefix=source.prefix if number == 0 else "")


def _job(source: Source, ids: Sequence[int], bundle: Bundle, frame: Frame, limits: Limits) -> Job:
    tokenizer = bundle.target_tokenizer
    prefix = (*frame.target_prefix, *prefix_ids(tokenizer, source))
    framed = tuple(frame.source(ids))
    request = Request(
        source=framed,
        limit=_limit(len(framed) - 1, len(prefix), limits),
        prefix=prefix,
        include=include_ids(tokenizer, source),
        banned=banned_ids(tokenizer, source),
    )
    for phrase, alternatives in zip(source.include, request.include, strict=True):
        if min(map(len, alternatives)) > request.limit:
            raise LengthError(
                f"include: {phrase!r} has {min(map(len, alternatives))} tokens, but this target may have at most "
                f"{request.limit}; raise max_length (--max-length), or leave the phrase out"
            )
    return Job(source, tuple(ids), request)


def _limit(source_length: int, prefix_length: int, limits: Limits) -> int:
    """Most tokens of a target: by the options or the paper, within what the positions allow."""
    limit = max(source_length, prefix_length) + MORE_THAN_SOURCE if limits.target is None else limits.target
    if limits.positions is not None:
        limit = min(limit, limits.positions - 1)
    if prefix_length > limit:
        raise LengthError(
            f"prefix: {prefix_length} tokens, but this target may have at most {limit}; raise max_length "
            "(--max-length) as far as the model's positions allow, or give a shorter prefix"
        )
    return limit
