"""The base class of all tokenizers: Headway's own :class:`~headway.text.tokenizer.Tokenizer` and the tokenizers of
imported models (:mod:`headway.text.imported`).

In all tokenizers, ids 0 to 3 are <pad>, <bos>, <eos> and <unk>. The tokenizer of a masked language model also has a
mask token (:attr:`TextTokenizer.mask_id`). Encoding a text never returns a special id, except <unk> for text that the
vocabulary does not contain.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import spelling_hint
from headway.errors import ConfigError, DataError
from headway.storage import atomic_write

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
NUM_SPECIAL = len(SPECIALS)
MASK = "[MASK]"  # the mask token, and the placeholder for a masked word in text


@dataclass(frozen=True)
class MergeStep:
    """A merge in the segmentation of a word. Tokens are in readable form (see :meth:`TextTokenizer.display`).

    Attributes:
        word_index: Index of the word in the text, counted from 0.
        rank: Position of the merge in the order of learning, counted from 0.
        left: The left token of the merged pair.
        right: The right token of the merged pair.
        merged: The token that results from the merge.
        segmentation: The tokens of the word after this merge.
    """

    word_index: int
    rank: int
    left: str
    right: str
    merged: str
    segmentation: tuple[str, ...]


class TextTokenizer(ABC):
    """Converts text to token ids and back.

    Attributes:
        kind: Kind of tokens ("bpe", "characters", "whitespace" or "words"), or library of an imported tokenizer
            ("huggingface", "sentencepiece" or "moses").
        tags: Names of ids that encoding a text never returns, such as "<2en>" and "[MASK]". Imported tokenizers have no
            tags; their languages are defined in the model folder's
            :class:`~headway.text.special_tokens.SpecialTokenTemplate`.
        vocab_size: Number of ids, including special tokens, tags and unused ids.
    """

    kind: str
    tags: tuple[str, ...] = ()
    vocab_size: int

    @abstractmethod
    def _encode_batch(self, texts: list[str]) -> list[list[int]]: ...

    @abstractmethod
    def _name(self, index: int) -> str:
        """Return the readable form of an id."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``. Special tokens and tags are skipped."""

    def decode_continuation(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Return the text that ``ids`` append to a preceding text.

        Unlike the result of :meth:`decode`, the text begins with a space if its first token does. Unless ``final``, an
        incomplete character at the end is omitted. The text of the first tokens is therefore a prefix of the text of
        all tokens, so that text can be displayed while it is generated.
        """
        return self.decode(ids)

    @abstractmethod
    def _saved(self) -> Mapping[str, Any]:
        """Return the content of the saved JSON file."""

    def tag_id(self, name: str) -> int:
        """Return the id of a tag, or raise :class:`ConfigError` if it is unknown."""
        if name not in self.tags:
            hint = spelling_hint(name, self.tags) if self.tags else "this vocabulary has no tags"
            raise ConfigError(f"unknown tag {name!r}; {hint}")
        return NUM_SPECIAL + self.tags.index(name)

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token, or None if the vocabulary has no mask token."""
        return self.tag_id(MASK) if MASK in self.tags else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, without special tokens around them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text. This is much faster than encoding the texts one by one, because the underlying
        libraries use all processors.
        """
        for number, text in enumerate(texts, start=1):
            check_no_surrogates(text, number)
        return self._encode_batch(list(texts))

    def tokens(self, text: str) -> list[str]:
        """Return the readable tokens of ``text``; see :meth:`display`."""
        return self.display(self.encode(text))

    def display(self, ids: Sequence[int]) -> list[str]:
        """Convert ids to readable form: the text of each token, or the name of a special token or tag.

        If a character is split between tokens, its bytes are shown in the form "<0xF0>". For tokenizers of kind "bpe",
        "characters" or "words", the concatenated tokens equal the text, unless they contain such bytes or <unk>.
        """
        self._check_ids(ids)
        return [self._name(index) for index in ids]

    def mandatory_ids(self) -> frozenset[int]:
        """Return the ids that every reduced vocabulary must keep: special tokens, tags and single-byte tokens."""
        return frozenset(range(NUM_SPECIAL + len(self.tags)))

    def with_required_ids(self, ids: Iterable[int]) -> set[int]:
        """Return ``ids`` and the ids of all tokens that encoding needs to produce them."""
        return set(ids)

    def restrict_vocabulary(self, ids: Sequence[int]) -> TextTokenizer:
        """Return a tokenizer with only these ids, renumbered as 0, 1, 2 and so on in this order.

        It segments a text like this tokenizer if all tokens of the segmentation are in ``ids``. ``ids`` must include
        :meth:`mandatory_ids` and be closed under :meth:`with_required_ids`.
        """
        raise ConfigError(f"the vocabulary of a {self.kind} tokenizer cannot be reduced")

    def merge_steps(self, text: str) -> list[MergeStep]:
        """Return the merges that segment ``text``. The list is empty if the tokenizer does not support this."""
        return []

    def _check_ids(self, ids: Sequence[int]) -> None:
        if wrong := [index for index in ids if not 0 <= index < self.vocab_size]:
            raise ConfigError(
                f"id {wrong[0]} is not in this vocabulary, whose ids are 0 to {self.vocab_size - 1}; "
                "check that the ids come from this tokenizer"
            )

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json`` atomically. The folder is created if it does not exist."""
        with atomic_write(folder / f"{name}.json") as aside:
            aside.write_text(self._content, encoding="utf-8", newline="\n")

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the saved file, in hexadecimal. Equal tokenizers have equal fingerprints, and vice versa."""
        return hashlib.sha256(self._content.encode()).hexdigest()

    @functools.cached_property
    def _content(self) -> str:
        return json.dumps(self._saved(), ensure_ascii=False, separators=(",", ":")) + "\n"


class ContinuationDecoder:
    """Incrementally decodes the tokens of a continuation, in time proportional to their number.

    The concatenated results equal the text that :meth:`TextTokenizer.decode_continuation` returns for all tokens.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        # Tokens to decode again together with the next tokens: the tokens of an incomplete character, and the token
        # before them, because a space may depend on it.
        self._ids: list[int] = []
        self._length = 0  # number of characters in the text of these tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that ``ids`` append to the previous tokens, without an incomplete character at the end."""
        decode = self._tokenizer.decode_continuation
        self._ids += ids
        whole = decode(self._ids)
        added, self._length = whole[self._length :], len(whole)
        if decode(self._ids, final=True) == whole and (last := decode(self._ids[-1:])):
            del self._ids[:-1]
            self._length = len(last)
        return added


def decode_utf8(data: bytes, *, final: bool) -> str:
    """Decode ``data``, with "�" for bytes that are not UTF-8.

    Unless ``final``, bytes at the end that may be the start of a character are omitted.
    """
    return codecs.utf_8_decode(data, "replace", final)[0]


def check_no_surrogates(text: str, text_number: int) -> None:
    """Raise :class:`DataError` if ``text`` cannot be encoded in UTF-8. ``text_number`` identifies the text in the
    message.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"text {text_number}, character {error.start + 1}: lone surrogate U+{ord(text[error.start]):04X}, which is "
            "not valid Unicode text; replace it, or read its source as UTF-8"
        ) from None
