"""Added tokens: vocabulary entries that `transformers` finds in a text before the tokenizer's model is applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class AddedToken:
    """An added token of a slow (Python) tokenizer.

    Attributes:
        content: The text of the token.
        single_word: Whether the token is matched only between spaces.
        lstrip: Whether white space before the token is removed.
        rstrip: Whether white space after the token is removed.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


def added_token_splitter(tokens: Iterable[AddedToken]) -> Callable[[str], list[tuple[str, bool]]]:
    """Return a function that splits a text into added tokens and the text between them.

    The function returns the nonempty parts, and whether each part is an added token. The leftmost match wins; among
    matches at the same position, the longest token wins. The flags have the same effect as in
    ``PreTrainedTokenizer.tokenize`` of `transformers`: each flag is applied to the preceding text as modified by
    earlier flags, and to the unmodified following text.
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
