"""Added tokens: pieces of a vocabulary that `transformers` finds in a text before the tokenizer's model reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class AddedToken:
    """An added token of a tokenizer in Python.

    Attributes:
        content: The text of the token.
        single_word: Whether it is found only between spaces.
        lstrip: Whether the white space before it is removed.
        rstrip: Whether the white space after it is removed.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


def added_token_splitter(tokens: Iterable[AddedToken]) -> Callable[[str], list[tuple[str, bool]]]:
    """Return a function that splits a text into added tokens and the texts between them.

    It returns the parts that are not empty, and whether each is an added token. The leftmost match wins, and among
    matches at the same position, the longest token. The flags mean what ``PreTrainedTokenizer.tokenize`` of
    `transformers` does: each applies to the text before it as modified by earlier flags, and to the unmodified text
    after it.
    """
    by_content = {token.content: token for token in tokens}
    longest_first = sorted(by_content, key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def split(text: str) -> list[tuple[str, bool]]:
        parts = [part for part in pattern.split(text) if part]
        for index, part in enumerate(parts):
            if (token := by_content.get(part)) is None:
                continue
            left = parts[index - 1] if index else ""
            right = parts[index + 1] if index + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[index + 1] = right.lstrip()
            if token.lstrip and left:
                parts[index - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[index - 1] += part
                parts[index] = ""
            elif token.single_word and right and right[0] != " ":
                parts[index + 1] = part + parts[index + 1]
                parts[index] = ""
        return [(part, part in by_content) for part in parts if part]

    return split
