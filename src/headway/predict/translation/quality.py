"""Flags for translations that are probably wrong, set by cheap checks that do not need a second model.

truncated
    The model did not generate EOS: the search stopped at the length limit.
repeated
    The translation loops. In the first check, an n-gram of up to 16 tokens occurs at least four times in a row, and
    more times in a row than any n-gram in the source. In the second check, zlib compresses the translation by a factor
    of more than 2.4, and more than the source. (2.4 is Whisper's threshold: Radford et al. 2022, "Robust Speech
    Recognition via Large-Scale Weak Supervision", section 4.5.) The second check applies only to texts of at least 64
    bytes, because zlib's overhead dominates in shorter texts. Because of the comparison with the source, a translation
    may repeat what the source repeats ("ha ha ha ha ha").
copied
    The translation equals the source, although the languages differ and the source has more than three words with a
    letter. A word is a run of letters and digits, or one character in Chinese and Japanese. Shorter texts (names,
    measurements) are often equal in both languages.
unknown_source
    The vocabulary contains none of the source's letters or words, so all of them are unknown tokens to the model. This
    happens with character and word vocabularies, and with some imported vocabularies.
forced
    A constraint (a phrase to include, or the target of a glossary entry) fits so badly that it has probably ruined the
    sentence. The cost of a constraint is the log-probability, in nats, that the best translation loses because of it:

        cost = (log P(best without constraints | source) - log P(best with constraints | source)) / n

    Both translations have the same prefix. n is the number of constraints that the translation without constraints does
    not satisfy. If it satisfies all of them, the cost is 0. The flag is set if the cost exceeds
    ``Calibration.max_constraint_cost``, the 99th percentile of the costs of single words from the references in the
    development set. Without this number, the flag is never set. The flag is set in
    :mod:`headway.predict.translation.find_candidates` after candidates have been chosen, because all candidates have
    the same constraints.
"""

from __future__ import annotations

import operator
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import get_args

from headway.predict.results import Flag, Translation
from headway.text.base import UNK, TextTokenizer

MAX_LOOP_TOKENS = 16
MIN_LOOP_REPEATS = 4
MAX_COMPRESSION_RATIO = 2.4
MIN_TEXT_BYTES = 64
MAX_COPIED_WORDS = 3

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")


def find_flags(
    source: str,
    target: str,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    *,
    finished: bool,
    languages_differ: bool,
    source_is_unknown: bool = False,
) -> tuple[Flag, ...]:
    """Return the flags of a translation, in the order of this module's docstring."""
    flags: list[Flag] = [] if finished else ["truncated"]
    if is_repetitive(source, target, source_ids, target_ids):
        flags.append("repeated")
    if languages_differ and is_copied(source, target):
        flags.append("copied")
    if source_is_unknown:
        flags.append("unknown_source")
    return tuple(flags)


def sort_flags(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """Return the distinct flags, in the order of :data:`Flag`."""
    names = set(flags)
    return tuple(flag for flag in get_args(Flag) if flag in names)


def has_only_unknown_tokens(ids: Sequence[int], tokenizer: TextTokenizer) -> bool:
    """Return whether all tokens except punctuation and white space are unknown tokens."""
    if UNK not in ids:
        return False
    known = tokenizer.display([token for token in ids if token != UNK])
    return not any(character.isalnum() for token in known for character in token)


def is_repetitive(source: str, target: str, source_ids: Sequence[int], target_ids: Sequence[int]) -> bool:
    """Return whether the target repeats itself or compresses too well, and does so more than the source."""
    if max(Counter(target_ids).values(), default=0) >= MIN_LOOP_REPEATS:  # otherwise no n-gram occurs that often
        run = max_ngram_repeats(target_ids)
        if run >= MIN_LOOP_REPEATS and run > max_ngram_repeats(source_ids):
            return True
    return (
        len(target.encode()) >= MIN_TEXT_BYTES
        and _compression_ratio(target) > MAX_COMPRESSION_RATIO
        and _compression_ratio(target) > _compression_ratio(source)
    )


def is_copied(source: str, target: str) -> bool:
    """Return whether the target equals the source, except for white space, and has more than three words."""
    if source.split() != target.split():
        return False
    return sum(any(map(str.isalpha, word)) for word in _WORD.findall(target)) > MAX_COPIED_WORDS


def max_ngram_repeats(tokens: Sequence[int]) -> int:
    """Return the largest number of times that an n-gram of at most 16 tokens occurs in a row, or 0 without tokens.

    If tokens[i] == tokens[i - n] for k consecutive positions i, an n-gram occurs k // n + 1 times in a row.
    """
    longest = min(len(tokens), 1)
    for n in range(1, min(MAX_LOOP_TOKENS, len(tokens) // 2) + 1):
        matches = list(map(operator.eq, tokens, tokens[n:]))
        if sum(matches) < n * longest:
            continue  # even if all matches were consecutive, the run would not be longer
        consecutive = 0
        for match in matches:
            consecutive = consecutive + 1 if match else 0
            longest = max(longest, consecutive // n + 1)
    return longest


def _compression_ratio(text: str) -> float:
    content = text.encode()
    return len(content) / len(zlib.compress(content))


def translation_flags(translation: Translation) -> list[str]:
    """Return the names of a translation's flags and of the requirements that it does not satisfy."""
    best = translation.candidates[0]
    unmet_terms = any(not term.met for term in best.glossary or ())
    names = {
        "include not met": best.unmet, "banned phrase": best.banned, "glossary not met": unmet_terms,
        "unlikely": translation.unlikely,
    }  # fmt: skip
    return [*best.flags, *(name for name, is_set in names.items() if is_set)]
