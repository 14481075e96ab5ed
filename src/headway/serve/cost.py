"""What a request costs: one function for its size check, its place in the queue, its caller's share and its quota.

Every field of a request that makes work is an argument here, or has a small bound of its own; a test walks all fields
of all APIs. Tokens are estimated from characters, so that a request is refused before any work is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.decode.request import DecodingOptions
from headway.predict import GenerationOptions, Source
from headway.predict.translation.options import TranslateOptions
from headway.serve.admission import estimated_tokens
from headway.serve.model_info import ModelInfo

_USUAL_ROWS = 4  # rows of a batch for each text with the default options
_USUAL_LONGER = 50  # a translation may have this many tokens more than its source if no maximum is given
_MAX_PHRASE_ROWS = 32  # maximum beam size with phrases, which extend each hypothesis
_MAX_ENTRIES = 2000  # maximum number of entries of a glossary that a request contains
_RESULTS_PER_NEW_TOKEN = 2  # a reply may have this many times limits.new_tokens
_CHARACTERS_PER_TOKEN = 4
_READ_TOKENS = 16  # reading this many tokens takes about as long as decoding one
_DETECTED_CHARACTERS_PER_TOKEN = 100  # detecting a language is much faster than translating
_CHECKED_CHARACTERS_PER_TOKEN = 40  # so is checking a glossary


@dataclass(frozen=True)
class Cost:
    """The cost of a request.

    Attributes:
        texts: Number of texts.
        characters: Characters of all texts and of what is read with each of them, for the limit and the quota.
        tokens: Estimated tokens that are decoded, as many as would take as long with the default options.
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
    decoding, characters, tokens = options.decoding, 0, 0.0
    rows = max(1.0, decoding.rows_per_sequence / _USUAL_ROWS)
    phrases, num_phrases, has_phrases = None, 0, has_glossary
    for source in sources:
        length = len(source if isinstance(source, str) else source.text)
        if isinstance(source, Source) and (source.prefix or source.include or source.banned):
            if phrases is None or phrases is not source.include:
                phrases, num_phrases = source.include, _num_characters(source)
                has_phrases |= bool(phrases)
            length += len(source.prefix) + num_phrases
        characters += length
        tokens += _decoded_tokens(length, decoding)
    asked = len(sources) * decoding.min_length
    results = tokens * decoding.n_best
    if options.alignment:
        tokens += results / rows / _USUAL_ROWS  # one pass through the model for each candidate
    listed = sum(len(cell) for row in entries[:_MAX_ENTRIES] for cell in row)  # more are refused
    return Cost(
        texts=len(sources),
        characters=characters + listed,
        tokens=math.ceil(tokens * rows) + listed // _CHECKED_CHARACTERS_PER_TOKEN,
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
        alternatives: The number of tokens that are listed for each place. None: the reply has no probabilities.
        has_prompts: Whether the reply has the tokens of the prompts, too.
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


def cost_of_fillings(texts: Sequence[str], top: int, candidates: Sequence[str] = ()) -> Cost:
    """Return the cost of filling the masks of texts.

    Args:
        texts: The texts.
        top: The number of fillings of each.
        candidates: The only fillings to consider, each of which is tokenized for each text.
    """
    considered = sum(map(len, candidates))
    cost = cost_of_texts(texts)
    return replace(
        cost,
        characters=cost.characters + len(texts) * considered,
        tokens=cost.tokens + len(texts) * math.ceil((considered / _CHARACTERS_PER_TOKEN + top) / _READ_TOKENS),
        result_tokens=top * cost.tokens,  # each filling has the whole text
    )


def cost_of_scores(texts: Sequence[str], model: ModelInfo) -> Cost:
    """Return the cost of measuring how probable texts are; a masked model reads a text once for each of its tokens."""
    cost = cost_of_texts(texts)
    if model.capability != "fills":
        return cost
    return replace(cost, tokens=sum(count * max(1, count // _READ_TOKENS) for count in map(estimated_tokens, texts)))


def cost_of_perplexity(texts: Sequence[str], times: float) -> Cost:
    """Return the cost of measuring a model on texts, each token of which is read a number of times."""
    cost = cost_of_texts(texts)
    return replace(cost, tokens=math.ceil(cost.tokens * max(1.0, times)))


def cost_of_detection(texts: Sequence[str]) -> Cost:
    """Return the cost of detecting the languages of texts."""
    characters = sum(map(len, texts))
    return Cost(len(texts), characters, math.ceil(characters / _DETECTED_CHARACTERS_PER_TOKEN))


def cost_of_glossary(lines: str) -> Cost:
    """Return the cost of checking a glossary."""
    return Cost(0, len(lines), math.ceil(len(lines) / _CHECKED_CHARACTERS_PER_TOKEN))


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
    ):
        if count > most:
            return f"{count:,} {what}; at most {most:,} are accepted"
    return None


def _decoded_tokens(characters: int, decoding: DecodingOptions) -> float:
    """Return about how many tokens are decoded for a text."""
    usual = 4 + characters / 4
    longest = decoding.max_length or 0
    return max(usual, decoding.min_length, longest if longest > characters + _USUAL_LONGER else 0)


def _num_characters(source: Source) -> int:
    """Return the number of characters of all phrases of a text."""
    included = sum(len(phrase) if isinstance(phrase, str) else sum(map(len, phrase)) for phrase in source.include)
    return included + sum(map(len, source.banned))
