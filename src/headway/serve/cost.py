"""Estimate the cost of a request, for its size check, the queue, the caller's share and the quota.

Every request field that causes work is an argument of a function in this file, or has a small limit of its own. A test
checks all fields of all APIs. Tokens are estimated from characters, so that a request is refused before any work is
done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.decode.generation_options import GenerationOptions
from headway.decode.request import DecodingOptions
from headway.predict import Source
from headway.predict.language_modeling.masked_language_model import MAX_MASKS, MIN_BEAM
from headway.predict.translation.options import TranslateOptions
from headway.serve.admission import EXTRA_TOKENS, estimated_tokens, num_sentences
from headway.serve.model_info import ModelInfo
from headway.text.base import MASK

_USUAL_ROWS = 4  # number of batch rows per text with the default options
_USUAL_LONGER = 50  # without a maximum length, a translation may have this many more tokens than its source
_PART_CHARACTERS = 500  # a longer text may be split into parts, each of which is decoded with the options of a text
_PART_TOKENS = 100  # a requested maximum length counts at most this many tokens for each part of a text
# A decoding step with phrases to include, a glossary, a prefix or a coverage penalty takes as long as this many steps
# without them.
_STEPS_WITH_RULES = 4
_STEPS_ALONE = 4  # a decoding step of a single sequence takes as long as this many steps of a sequence in a batch
_INSPECTION_STEPS = 6  # an inspection takes as long as this many translations
_MAX_PHRASE_ROWS = 32  # maximum beam size with phrases to include, because each hypothesis is extended by each phrase
_MAX_ENTRIES = 2000  # maximum number of entries in a glossary that a request contains
_MAX_TOKENS = 1_000_000  # maximum work of a request; most larger requests take longer than limits.request_seconds
_RESULTS_PER_NEW_TOKEN = 2  # maximum size of a reply in tokens, as a multiple of limits.new_tokens
_CHARACTERS_PER_TOKEN = 4
_READ_TOKENS = 16  # encoding this many tokens takes about as long as decoding one token
# Characters that take as long as decoding one token: in language detection, in sentence splitting, and in preparing a
# glossary, which a worker does for the first request with the glossary.
_DETECTED_CHARACTERS_PER_TOKEN = 100
_SPLIT_CHARACTERS_PER_TOKEN = 25
_PREPARED_CHARACTERS_PER_TOKEN = 100


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a request.

    Attributes:
        num_texts: Number of texts.
        num_characters: Number of characters of all texts, prefixes, phrases and glossary entries, for the limit and the
            quota.
        work_tokens: Estimated work, as the number of tokens that take the same time to decode with the default options.
        new_tokens: Number of tokens that the request asks for in addition to what its texts need.
        num_hypotheses: Number of hypotheses per text.
        max_length: The maximum length that the request asks for, in tokens, or 0.
        phrase_characters: Number of characters of all phrases to include or ban.
        phrase_rows: Beam size if there are phrases to include or a glossary, otherwise 0.
        num_entries: Number of entries in a glossary that the request contains.
        result_tokens: Estimated number of tokens of all results.
    """

    num_texts: int
    num_characters: int
    work_tokens: int
    new_tokens: int = 0
    num_hypotheses: int = 1
    max_length: int = 0
    phrase_characters: int = 0
    phrase_rows: int = 0
    num_entries: int = 0
    result_tokens: int = 0


def cost_of_texts(texts: Sequence[str], new_tokens: int = 0) -> Cost:
    """Return the cost of work that is proportional to the size of texts, plus a number of new tokens."""
    return Cost(len(texts), sum(map(len, texts)), sum(map(estimated_tokens, texts)) + new_tokens, new_tokens)


def cost_of_translation(
    sources: Sequence[str | Source],
    options: TranslateOptions,
    *,
    entries: Sequence[Sequence[str]] = (),
    has_glossary: bool = False,
) -> Cost:
    """Return the cost of translating texts.

    Args:
        sources: Texts to translate, with their prefixes and phrases.
        options: Translation options.
        entries: Entries of a glossary that the request contains.
        has_glossary: Whether the translation uses a glossary, in the request or stored.
    """
    decoding, characters, tokens, results, asked = options.decoding, 0, 0.0, 0.0, 0
    rows = max(1.0, decoding.rows_per_sequence / _USUAL_ROWS)
    phrases, num_included, num_phrases, has_phrases = None, 0, 0, has_glossary
    for source in sources:
        text = source if isinstance(source, str) else source.text
        sentences = num_sentences(text)
        parts = sentences + len(text) // _PART_CHARACTERS
        usual, read = estimated_tokens(text), len(text)
        longest = decoding.max_length or 0
        if longest <= len(text) / parts + _USUAL_LONGER:  # not more than the parts of the text usually need
            longest = 0
        steps: float = _decoded_tokens(usual, parts, longest, decoding)
        overhead = EXTRA_TOKENS * (sentences - 1)
        if decoding.length_penalty > 1:
            results += steps - overhead
        else:  # the maximum length counts once per text, because the parts rarely reach it
            results += max(usual - overhead, parts * decoding.min_length, longest)
        if isinstance(source, Source) and (source.prefix or source.include or source.banned):
            if phrases is None or phrases is not source.include:
                phrases, num_included = source.include, _num_included(source)
                num_phrases = num_included + sum(map(len, source.banned))
                has_phrases |= bool(phrases)
            read += len(source.prefix) + num_phrases
            steps += (num_phrases - num_included) / _CHARACTERS_PER_TOKEN
            results += len(source.prefix) / _CHARACTERS_PER_TOKEN
            steps += _STEPS_WITH_RULES * len(source.prefix) / _CHARACTERS_PER_TOKEN
            if source.include:
                steps = _STEPS_WITH_RULES * (steps + num_included)
        characters += read
        tokens += steps
        asked += parts * decoding.min_length
    if has_glossary:
        tokens *= _STEPS_WITH_RULES
    if decoding.coverage_penalty:
        tokens *= _STEPS_WITH_RULES
    tokens, results = max(tokens, _STEPS_ALONE * decoding.min_length), results * decoding.n_best
    if options.alignment:
        tokens += results / rows / _USUAL_ROWS  # one pass through the model for each candidate
    listed = sum(len(cell) for row in entries[:_MAX_ENTRIES] for cell in row)  # longer glossaries are refused
    return Cost(
        num_texts=len(sources),
        num_characters=characters + listed,
        work_tokens=math.ceil(tokens * rows),
        new_tokens=asked,
        num_hypotheses=max(decoding.beam_size, decoding.n_best),
        max_length=decoding.max_length or 0,
        phrase_characters=num_phrases,
        phrase_rows=decoding.beam_size if has_phrases else 0,
        num_entries=len(entries),
        result_tokens=math.ceil(results),
    )


def cost_of_generation(
    prompts: Sequence[str], options: GenerationOptions, *, alternatives: int | None = None, has_prompts: bool = False
) -> Cost:
    """Return the cost of continuing prompts.

    Args:
        prompts: Prompts to continue.
        options: Generation options.
        alternatives: Number of tokens to list at each position. None means that the reply has no probabilities.
        has_prompts: Whether the reply also contains the tokens of the prompts.
    """
    phrases = sum(map(len, (*options.include, *options.ban, *options.stop)))
    asked = len(prompts) * options.n * options.max_new_tokens
    rows = max(1, options.beam_size // max(1, options.n))
    read = sum(map(estimated_tokens, prompts))
    shown = options.n * read if has_prompts else 0
    tokens, results = read + asked * rows, asked + shown
    if alternatives is not None:
        tokens += math.ceil((options.n * read + asked) / _READ_TOKENS)  # each continuation is encoded once more
        results *= 1 + alternatives
    return Cost(
        num_texts=len(prompts) * options.n,
        num_characters=sum(map(len, prompts)) + len(prompts) * phrases,
        work_tokens=tokens,
        new_tokens=asked,
        num_hypotheses=max(options.beam_size, options.n),
        phrase_characters=phrases,
        phrase_rows=options.beam_size if options.include else 0,
        result_tokens=results,
    )


def cost_of_alternatives(text: str, prefix: str) -> Cost:
    """Return the cost of predicting the token after a prefix, which is decoded one token at a time."""
    cost = cost_of_texts([text, prefix])
    return replace(cost, work_tokens=cost.work_tokens + _STEPS_ALONE * len(prefix))


def cost_of_inspection(texts: Sequence[str]) -> Cost:
    """Return the cost of inspecting a translation."""
    cost = cost_of_texts(texts)
    return replace(cost, work_tokens=_INSPECTION_STEPS * cost.work_tokens)


def cost_of_fillings(texts: Sequence[str], top: int, candidates: Sequence[str] = ()) -> Cost:
    """Return the cost of filling the masks in texts.

    A text is encoded once for its first mask. For each further mask, it is encoded once for each way to fill the
    earlier masks. If there are candidates, it is encoded once for each distinct candidate length, and once for each
    candidate token except the first.

    Args:
        texts: Texts with masks to fill.
        top: Number of fillings to return for each text.
        candidates: Words or phrases to choose from. They are tokenized for each text.
    """
    cost, considered = cost_of_texts(texts), sum(map(len, candidates))
    lengths = [max(1, len(candidate) // _CHARACTERS_PER_TOKEN) for candidate in candidates] or [1]
    queries = sum(lengths) - len(lengths) + len(set(lengths))
    read = 0
    for text in texts:
        masks = min(text.count(MASK), MAX_MASKS)  # more are refused
        rows = 1 + max(0, masks - 1) * max(top, MIN_BEAM)
        read += rows * (queries * (estimated_tokens(text) + masks * max(lengths)) + len(candidates))
    return replace(
        cost,
        num_characters=cost.num_characters + len(texts) * considered,
        work_tokens=cost.work_tokens + math.ceil(read / _READ_TOKENS),
        result_tokens=top * cost.work_tokens,  # each filling contains the whole text
    )


def cost_of_scores(texts: Sequence[str], model: ModelInfo) -> Cost:
    """Return the cost of scoring texts. A masked language model encodes a text once for each of its tokens."""
    cost = cost_of_texts(texts)
    if model.capability != "fills":
        return cost
    return replace(
        cost, work_tokens=sum(count * max(1, count // _READ_TOKENS) for count in map(estimated_tokens, texts))
    )


def cost_of_perplexity(texts: Sequence[str], times: float) -> Cost:
    """Return the cost of computing the perplexity of texts if each token is encoded ``times`` times."""
    cost = cost_of_texts(texts)
    return replace(cost, work_tokens=math.ceil(cost.work_tokens * max(1.0, times)))


def cost_of_detection(texts: Sequence[str]) -> Cost:
    """Return the cost of detecting the languages of texts."""
    characters = sum(map(len, texts))
    return Cost(len(texts), characters, math.ceil(characters / _DETECTED_CHARACTERS_PER_TOKEN))


def cost_of_splitting(texts: Sequence[str]) -> Cost:
    """Return the cost of splitting texts into sentences."""
    characters = sum(map(len, texts))
    return Cost(len(texts), characters, len(texts) + characters // _SPLIT_CHARACTERS_PER_TOKEN)


def cost_of_glossary(lines: str) -> Cost:
    """Return the cost of preparing a glossary in a worker that does not have it yet."""
    return Cost(0, len(lines), math.ceil(len(lines) / _PREPARED_CHARACTERS_PER_TOKEN))


def exceeded_limit_message(cost: Cost, limits: Any) -> str | None:
    """Return a message about the first limit (:class:`~headway.serve.config.LimitsConfig`) exceeded, or None."""
    longest = _RESULTS_PER_NEW_TOKEN * limits.new_tokens
    for count, most, what in (
        (cost.num_texts, limits.texts, "texts in one request"),
        (cost.num_characters, limits.characters, "characters in one request"),
        (cost.num_hypotheses, limits.hypotheses, "hypotheses per text"),
        (cost.max_length, limits.new_tokens, "new tokens per text"),
        (cost.new_tokens, limits.new_tokens, "new tokens in one request"),
        (cost.phrase_characters, limits.phrase_characters, "characters of phrases in one request"),
        (cost.phrase_rows, _MAX_PHRASE_ROWS, "hypotheses per text with phrases to include or a glossary"),
        (cost.num_entries, _MAX_ENTRIES, "glossary entries in one request; create a glossary for more entries"),
        (cost.result_tokens, longest, "estimated tokens in all results of one request"),
        (cost.work_tokens, max(_MAX_TOKENS, 2 * limits.characters), "estimated tokens of work in one request"),
    ):
        if count > most:
            return f"{count:,} {what}; at most {most:,} are accepted"
    return None


def _decoded_tokens(usual: int, parts: int, longest: int, decoding: DecodingOptions) -> int:
    """Estimate the number of tokens to decode for a text that is translated in parts.

    Args:
        usual: Estimated number of tokens of the text.
        parts: Number of parts.
        longest: Requested maximum length of a translation, or 0 if it does not exceed what the text needs.
        decoding: Search options.
    """
    if decoding.length_penalty > 1:  # searches continue up to the maximum length
        usual += parts * _USUAL_LONGER
    return max(usual, longest, parts * min(longest, _PART_TOKENS), parts * decoding.min_length)


def _num_included(source: Source) -> int:
    """Return the total number of characters of the phrases to include."""
    return sum(len(phrase) if isinstance(phrase, str) else sum(map(len, phrase)) for phrase in source.include)
