"""The cost of a request, for its size check, the queue, the caller's share and the quota.

Every field of a request that causes work is an argument here, or has a separate small limit. A test checks all fields
of all APIs. Tokens are estimated from characters, so that a request is refused before any work is done.
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

_USUAL_ROWS = 4  # number of rows in a batch per text with the default options
_USUAL_LONGER = 50  # a translation may have this many tokens more than its source if no maximum is given
_PART_CHARACTERS = 500  # a longer text may be translated in parts, each with the options for a text
_PART_TOKENS = 100  # number of tokens of the given maximum that count for each part of a text
# A step with phrases to include, a glossary, a prefix or a coverage penalty takes as long as this many usual steps.
_STEPS_WITH_RULES = 4
_STEPS_ALONE = 4  # a step of a sequence that is decoded alone takes as long as this many usual steps
_INSPECTION_STEPS = 6  # an inspection takes as long as this many translations
_MAX_PHRASE_ROWS = 32  # maximum beam size with phrases, which extend each hypothesis
_MAX_ENTRIES = 2000  # maximum number of entries of a glossary that a request contains
_MAX_TOKENS = 1_000_000  # maximum work of a request; most requests with more take longer than limits.request_seconds
_RESULTS_PER_NEW_TOKEN = 2  # a reply may have this many times limits.new_tokens
_CHARACTERS_PER_TOKEN = 4
_READ_TOKENS = 16  # reading this many tokens takes about as long as decoding one
_DETECTED_CHARACTERS_PER_TOKEN = 100  # detecting a language is much faster than translating
_SPLIT_CHARACTERS_PER_TOKEN = 25  # splitting into sentences is much faster, too
# Preparing a glossary is much faster, too; workers do it for the first request with the glossary.
_PREPARED_CHARACTERS_PER_TOKEN = 100


@dataclass(frozen=True)
class Cost:
    """The cost of a request.

    Attributes:
        texts: Number of texts.
        characters: Number of characters of all texts, and of everything that is read with each text, for the limit and
            the quota.
        tokens: Estimated work: the number of tokens that would take the same time to decode with the default options.
        new_tokens: The number of tokens that the request asks for, beyond what its texts need.
        hypotheses: Number of hypotheses of each text.
        length: The largest number of tokens of a text that the request asks for.
        phrase_characters: Characters of all phrases to include and to ban.
        phrase_rows: Beam size of the search, if there are phrases.
        entries: Number of entries of a glossary that the request contains.
        result_tokens: Estimated tokens of all results.
    """

    texts: int
    characters: int
    tokens: int
    new_tokens: int = 0
    hypotheses: int = 1
    length: int = 0
    phrase_characters: int = 0
    phrase_rows: int = 0
    entries: int = 0
    result_tokens: int = 0


def cost_of_texts(texts: Sequence[str], new_tokens: int = 0) -> Cost:
    """Return the cost of work of the size of texts, and of a number of new tokens."""
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
        sources: The texts, with their prefixes and phrases.
        options: The options.
        entries: The entries of a glossary that the request contains.
        has_glossary: Whether there is a glossary.
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
        if longest <= len(text) / parts + _USUAL_LONGER:  # not more than the parts of the text need
            longest = 0
        steps: float = _decoded_tokens(usual, parts, longest, decoding)
        overhead = EXTRA_TOKENS * (sentences - 1)
        if decoding.length_penalty > 1:
            results += steps - overhead
        else:  # the maximum counts once for a text, because its parts rarely reach it
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
        texts=len(sources),
        characters=characters + listed,
        tokens=math.ceil(tokens * rows),
        new_tokens=asked,
        hypotheses=max(decoding.beam_size, decoding.n_best),
        length=decoding.max_length or 0,
        phrase_characters=num_phrases,
        phrase_rows=decoding.beam_size if has_phrases else 0,
        entries=len(entries),
        result_tokens=math.ceil(results),
    )


def cost_of_generation(
    prompts: Sequence[str], options: GenerationOptions, *, alternatives: int | None = None, has_prompts: bool = False
) -> Cost:
    """Return the cost of continuing prompts.

    Args:
        prompts: The prompts.
        options: The options.
        alternatives: The number of tokens to list at each position. None means that the reply has no probabilities.
        has_prompts: Whether the reply also contains the tokens of the prompts.
    """
    phrases = sum(map(len, (*options.include, *options.ban, *options.stop)))
    asked = len(prompts) * options.n * options.max_new_tokens
    rows = max(1, options.beam_size // max(1, options.n))
    read = sum(map(estimated_tokens, prompts))
    shown = options.n * read if has_prompts else 0
    tokens, results = read + asked * rows, asked + shown
    if alternatives is not None:
        tokens += math.ceil((options.n * read + asked) / _READ_TOKENS)  # each continuation is read once more
        results *= 1 + alternatives
    return Cost(
        texts=len(prompts) * options.n,
        characters=sum(map(len, prompts)) + len(prompts) * phrases,
        tokens=tokens,
        new_tokens=asked,
        hypotheses=max(options.beam_size, options.n),
        phrase_characters=phrases,
        phrase_rows=options.beam_size if options.include else 0,
        result_tokens=results,
    )


def cost_of_alternatives(text: str, prefix: str) -> Cost:
    """Return the cost of predicting the tokens after a prefix, which is read one token at a time."""
    cost = cost_of_texts([text, prefix])
    return replace(cost, tokens=cost.tokens + _STEPS_ALONE * len(prefix))


def cost_of_inspection(texts: Sequence[str]) -> Cost:
    """Return the cost of inspecting the translation of a text."""
    cost = cost_of_texts(texts)
    return replace(cost, tokens=_INSPECTION_STEPS * cost.tokens)


def cost_of_fillings(texts: Sequence[str], top: int, candidates: Sequence[str] = ()) -> Cost:
    """Return the cost of filling the masks of texts.

    The text is read once for the first mask. For each further mask, it is read once with each way to fill in the
    earlier masks. If there are candidates, it is read once for each length of a candidate, and once for each of their
    tokens except the first.

    Args:
        texts: The texts.
        top: The number of fillings of each.
        candidates: The words or phrases to choose from. They are tokenized for each text.
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
        characters=cost.characters + len(texts) * considered,
        tokens=cost.tokens + math.ceil(read / _READ_TOKENS),
        result_tokens=top * cost.tokens,  # each filling has the whole text
    )


def cost_of_scores(texts: Sequence[str], model: ModelInfo) -> Cost:
    """Return the cost of scoring texts; a masked model reads a text once for each of its tokens."""
    cost = cost_of_texts(texts)
    if model.capability != "fills":
        return cost
    return replace(cost, tokens=sum(count * max(1, count // _READ_TOKENS) for count in map(estimated_tokens, texts)))


def cost_of_perplexity(texts: Sequence[str], times: float) -> Cost:
    """Return the cost of measuring a model on texts if each token is read ``times`` times."""
    cost = cost_of_texts(texts)
    return replace(cost, tokens=math.ceil(cost.tokens * max(1.0, times)))


def cost_of_detection(texts: Sequence[str]) -> Cost:
    """Return the cost of detecting the languages of texts."""
    characters = sum(map(len, texts))
    return Cost(len(texts), characters, math.ceil(characters / _DETECTED_CHARACTERS_PER_TOKEN))


def cost_of_splitting(texts: Sequence[str]) -> Cost:
    """Return the cost of splitting texts into sentences."""
    characters = sum(map(len, texts))
    return Cost(len(texts), characters, len(texts) + characters // _SPLIT_CHARACTERS_PER_TOKEN)


def cost_of_glossary(lines: str) -> Cost:
    """Return the cost of preparing a glossary in a worker that does not have it."""
    return Cost(0, len(lines), math.ceil(len(lines) / _PREPARED_CHARACTERS_PER_TOKEN))


def problem_of(cost: Cost, limits: Any) -> str | None:
    """Return which limit (:class:`headway.serve.config.LimitsConfig`) a request exceeds, or None."""
    longest = _RESULTS_PER_NEW_TOKEN * limits.new_tokens
    for count, most, what in (
        (cost.texts, limits.texts, "texts in one request"),
        (cost.characters, limits.characters, "characters in one request"),
        (cost.hypotheses, limits.hypotheses, "hypotheses of a text"),
        (cost.length, limits.new_tokens, "new tokens of a text"),
        (cost.new_tokens, limits.new_tokens, "new tokens in one request"),
        (cost.phrase_characters, limits.phrase_characters, "characters of phrases in one request"),
        (cost.phrase_rows, _MAX_PHRASE_ROWS, "hypotheses of a text with phrases to include or a glossary"),
        (cost.entries, _MAX_ENTRIES, "entries of a glossary in one request; create a glossary for more of them"),
        (cost.result_tokens, longest, "estimated tokens of all results of one request"),
        (cost.tokens, max(_MAX_TOKENS, 2 * limits.characters), "estimated tokens of work in one request"),
    ):
        if count > most:
            return f"{count:,} {what}; at most {most:,} are accepted"
    return None


def _decoded_tokens(usual: int, parts: int, longest: int, decoding: DecodingOptions) -> int:
    """Estimate the number of tokens that are decoded for a text that is translated in a number of parts.

    Args:
        usual: The estimated number of tokens of the text.
        parts: The number of parts.
        longest: The maximum length of a translation, or 0 if it is not more than the text needs.
        decoding: The options.
    """
    if decoding.length_penalty > 1:  # searches continue up to the maximum length
        usual += parts * _USUAL_LONGER
    return max(usual, longest, parts * min(longest, _PART_TOKENS), parts * decoding.min_length)


def _num_included(source: Source) -> int:
    """Return the number of characters of all phrases to include."""
    return sum(len(phrase) if isinstance(phrase, str) else sum(map(len, phrase)) for phrase in source.include)
