"""What every tokenizer offers, whoever made it: Headway's own (:class:`~headway.text.tokenizer.Tokenizer`) and those of
imported models (:mod:`headway.text.huggingface`, :mod:`headway.text.sentencepiece`, :mod:`headway.text.moses`).

Ids 0 to 3 are <pad>, <bos>, <eos> and <unk> in all of them. No text ever makes a special id, except <unk> for what a
vocabulary does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from headway.text.tokenizer import MergeStep

__all__ = ["TextTokenizer"]


@runtime_checkable
class TextTokenizer(Protocol):
    """The way between text and ids; the methods are described at :class:`~headway.text.tokenizer.Tokenizer`."""

    @property
    def kind(self) -> str:
        """What a token is: "bpe", "characters", "whitespace", or whose tokenizer it is: "huggingface",
        "sentencepiece", "moses"."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of ids that text never makes, such as "<2en>"; empty for imported tokenizers, whose languages the
        model folder's framing names."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    @property
    def fingerprint(self) -> str:
        """Equal when and only when two tokenizers are."""

    def tag_id(self, name: str) -> int:
        """The id of a tag."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around them."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def tokens(self, text: str) -> list[str]:
        """The readable pieces of a text."""

    def display(self, ids: Sequence[int]) -> list[str]:
        """Each id for people."""

    def merges_applied(self, text: str) -> list[MergeStep]:
        """The merges that segment a text; empty where there is nothing to tell."""

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json`` and what belongs to it."""
