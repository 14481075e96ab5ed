"""Create bad pairs from the texts in a corpus. The scores of real pairs are compared with the scores of bad pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from headway.text.words import word_spans

_TRUNCATED_SHARES = (0.25, 0.65)  # minimum and maximum share of a text's words that are cut from its end
_SHARE_WITH_END = 0.5  # share of truncated texts that keep the final punctuation of the complete text
_END = re.compile(r"\W*\Z")


def swap_texts(texts: Sequence[str], dice: np.random.Generator) -> list[str]:
    """Return, for each text, another text of nearly the same length."""
    order = np.lexsort((dice.random(len(texts)), np.array([len(text) for text in texts])))
    others: list[str] = [""] * len(texts)
    for index, other in zip(order.tolist(), np.roll(order, 1).tolist(), strict=True):
        others[index] = texts[other]
    return others


def truncate_texts(texts: Sequence[str], dice: np.random.Generator) -> list[str]:
    """Return texts without their last words. About half of them keep the final punctuation of the complete text.

    A text without final punctuation looks as if a length limit has truncated it. A text with final punctuation looks as
    if a clause or a sentence is missing. Texts of one word are not truncated.
    """
    shares = dice.uniform(*_TRUNCATED_SHARES, len(texts)).tolist()
    keep_end = (dice.random(len(texts)) < _SHARE_WITH_END).tolist()
    return [*map(_truncated, texts, shares, keep_end)]


def _truncated(text: str, share: float, keeps_end: bool) -> str:
    without_end = _END.sub("", text)
    spans = word_spans(without_end)
    if len(spans) < 2:
        return text
    kept = text[: spans[min(round(len(spans) * (1 - share)), len(spans) - 1) - 1][1]]
    return _END.sub("", kept) + text[len(without_end) :] if keeps_end else kept
