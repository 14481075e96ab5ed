"""Is something wrong with a translation? Cheap checks that need no second model.

truncated
    It did not end by itself: search ended it at the length limit.
repeated
    It goes round in a loop: the same n tokens (n up to 16) stand at least four times in a row, and more often in a row
    than any n tokens of the source do; or it is so repetitive that zlib makes it smaller than 1/2.4 (the threshold of
    Whisper: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", section 4.5), and more
    so than the source. The second is asked of texts of at least 64 bytes; in shorter ones zlib's own bytes count too
    much. The comparison with the source lets repetition pass that was there before ("ha ha ha ha ha").
copied
    It is the source, though the languages differ and there is something to translate: more than three words with a
    letter in them. A word is a run of letters and digits; of Chinese and Japanese, a character. Shorter texts (names,
    measures) are often rightly equal.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence

from headway.predict.results import Flag

__all__ = ["find_flags", "is_copied", "is_repeated", "longest_run"]

LOOP_TOKENS = 16
LOOP_REPEATS = 4
COMPRESSION_RATIO = 2.4
COMPRESSION_BYTES = 64
COPIED_WORDS = 3

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")


def find_flags(
    source: str,
    target: str,
    source_ids: Sequence[int],
    target_ids: Sequence[int],
    *,
    finished: bool,
    languages_differ: bool,
) -> tuple[Flag, ...]:
    """The flags of a translation, in the order of this file's docstring."""
    flags: list[Flag] = [] if finished else ["truncated"]
    if is_repeated(source, target, source_ids, target_ids):
        flags.append("repeated")
    if languages_differ and is_copied(source, target):
        flags.append("copied")
    return tuple(flags)


def is_repeated(source: str, target: str, source_ids: Sequence[int], target_ids: Sequence[int]) -> bool:
    """Whether the target loops, or compresses too well, and the source does not as much."""
    if max(Counter(target_ids).values(), default=0) >= LOOP_REPEATS:  # else no n-gram stands so often
        run = longest_run(target_ids)
        if run >= LOOP_REPEATS and run > longest_run(source_ids):
            return True
    return (
        len(target.encode()) >= COMPRESSION_BYTES
        and _compression_ratio(target) > COMPRESSION_RATIO
        and _compression_ratio(target) > _compression_ratio(source)
    )


def is_copied(source: str, target: str) -> bool:
    """Whether the target is the source (white space aside), and that has more than three words to translate."""
    if source.split() != target.split():
        return False
    return sum(any(map(str.isalpha, word)) for word in _WORD.findall(target)) > COPIED_WORDS


def longest_run(tokens: Sequence[int]) -> int:
    """How many times in a row some n-gram of at most 16 tokens stands; at least 1, and 0 of no tokens.

    Where tokens[i] equals tokens[i - n] for k places in a row, an n-gram stands k // n + 1 times in a row.
    """
    longest = min(len(tokens), 1)
    for n in range(1, min(LOOP_TOKENS, len(tokens) // 2) + 1):
        matches = 0
        for before, token in zip(tokens, tokens[n:], strict=False):
            matches = matches + 1 if before == token else 0
            longest = max(longest, matches // n + 1)
    return longest


def _compression_ratio(text: str) -> float:
    content = text.encode()
    return len(content) / len(zlib.compress(content))
