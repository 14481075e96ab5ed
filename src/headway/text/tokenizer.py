"""Lossless conversion of text to token ids and back: byte-pair encoding of UTF-8 bytes.

Byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, section 3.2)
starts from single symbols and repeatedly merges the adjacent pair that is most frequent in the corpus. The pairs, in
the order of learning, are the *merges*; the position of a merge in this order is its *rank*. A new word is segmented by
repeatedly applying the possible merge with the lowest rank, leftmost first.

As in Wang et al. ("Neural Machine Translation with Byte-Level Subwords", 2020) and GPT-2 (Radford et al., 2019), the
initial symbols are the 256 bytes, so no character is unknown: every valid string is preserved by encoding and decoding.
Text is split into words with GPT-2's regular expression, which treats the space before a word as part of the word.
Merges never cross words. In this file, in the saved JSON and in Hugging Face `tokenizers` (the library that learns
merges and segments text), each byte is *spelled* as a printable character (GPT-2's ``bytes_to_unicode``: the space is
"Ġ"). :meth:`Tokenizer.display` returns readable text instead.

Special tokens and tags are not added to the library's tokenizer, because it would match them inside text, so that a
sentence about "</s>" would end early. Instead, they have the lowest ids, and the library's ids are shifted by their
number, so encoding a text cannot return them:

    0 <pad>    1 <bos>    2 <eos>    3 <unk>    4... the tags    then the vocabulary

The tokens of kind "words" are the words that merges never cross, each with the preceding space. Tokenizers of kinds
"bpe" and "words" therefore differ only inside words.
"""

from __future__ import annotations

import codecs
import functools
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import tokenizers
from pydantic import Field, model_validator
from tokenizers import models, pre_tokenizers, trainers

from headway.config import Config
from headway.errors import BundleError, ConfigError, DataError
from headway.text.base import NUM_SPECIAL, SPECIALS, UNK, MergeStep, TextTokenizer, check_no_surrogates, decode_utf8
from headway.text.merge_closure import symbols_of_merges

SAMPLE_BYTES = 200  # ``TokenizerConfig.sample_lines`` counts an example of up to this size as one line

TokenizerKind = Literal["bpe", "characters", "whitespace", "words"]


class TokenizerConfig(Config):
    """Configuration of how text is split into tokens."""

    kind: TokenizerKind = Field(
        "bpe",
        description="Kind of tokens: byte-pair units (bpe), single characters (characters), text between spaces "
        "(whitespace, for predefined symbols such as phones), or the words of which byte-pair units are parts "
        "(words; less frequent words become <unk>).",
    )
    vocab_size: int = Field(
        8000, ge=300, description="Maximum size of a bpe or words vocabulary, including special ids."
    )
    joint: bool = Field(True, description="Whether source and target share a vocabulary.")
    min_frequency: int = Field(
        2,
        ge=1,
        description="Minimum number of times that a pair must occur in the training text to become a bpe token.",
    )
    split_digits: bool = Field(
        False, description="Whether each digit is a separate bpe or words token, which makes it easier to copy numbers."
    )
    sample_lines: int = Field(
        500_000,
        ge=1,
        description="Maximum number of training examples from which a vocabulary is learned, evenly spread over all "
        f"corpora. Fewer examples are used if they have more than {SAMPLE_BYTES} bytes on average. This limits "
        "time and memory.",
    )


class Tokenizer(TextTokenizer):
    """Headway's own tokenizer, created by :meth:`train` or :func:`load_tokenizer`.

    The kinds differ in what they preserve. "bpe" preserves every string. "characters" preserves the characters seen in
    training; other characters become ``UNK`` and are decoded as "�". "whitespace" preserves tokens between single
    spaces (U+0020); repeated, leading and trailing spaces are lost, and unseen tokens become ``UNK``. "words" preserves
    the words in its vocabulary and all spaces; any other word becomes ``UNK``, with one token for each space before it.

    Args:
        kind: Kind of tokens; see :class:`TokenizerConfig`.
        tokens: The vocabulary in id order, spelled in the byte alphabet for "bpe".
        merges: Pairs that "bpe" merges, in the order of learning.
        tags: Names of additional ids that encoding a text never returns, such as the language tag "<2en>".
        split_digits: Whether "bpe" and "words" treat each digit as a separate word.
    """

    def __init__(
        self,
        kind: TokenizerKind,
        tokens: Sequence[str],
        merges: Sequence[tuple[str, str]] = (),
        tags: Sequence[str] = (),
        *,
        split_digits: bool = False,
    ) -> None:
        if problem := _tag_problem(tags):
            raise ConfigError(problem)
        self.kind: TokenizerKind = kind
        self.tags = tuple(tags)
        self.split_digits = split_digits
        self._tokens = tuple(tokens)
        self._merges = tuple(merges)
        self._shift = NUM_SPECIAL + len(self.tags)
        self._ids = {token: index for index, token in enumerate(tokens, start=self._shift)}
        # The bytes that each id contributes to decoded text. Ids with None are skipped, along with the separator.
        self._pieces: list[bytes | None] = [None] * self._shift
        self._pieces += [_unspell(token) if kind == "bpe" else token.encode() for token in tokens]
        if kind != "bpe":
            self._pieces[UNK] = "\N{REPLACEMENT CHARACTER}".encode()
        self._names = dict(enumerate((*SPECIALS, *self.tags)))  # readable names, completed as they are needed
        self.vocab_size = len(self._pieces)

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig, *, tags: Sequence[str] = ()) -> Tokenizer:
        """Learn a vocabulary from ``texts``, which are consumed lazily and only once. The result is deterministic."""
        texts, room = _checked(texts), config.vocab_size - NUM_SPECIAL - len(tags)
        match config.kind:
            case "bpe":
                if room < len(_BYTES):
                    raise ConfigError(
                        f"vocab_size = {config.vocab_size}: {len(tags)} tags leave room for {room} tokens, but bpe "
                        f"needs 256 for the bytes; expected at least {config.vocab_size - room + len(_BYTES)}"
                    )
                return cls("bpe", *_learn_merges(texts, room, config), tags, split_digits=config.split_digits)
            case "words":
                return cls("words", _frequent_words(texts, room, config), tags=tags, split_digits=config.split_digits)
            case "characters":
                return cls("characters", sorted({character for text in texts for character in text}), tags=tags)
            case "whitespace":
                return cls("whitespace", sorted({token for text in texts for token in _split(text)}), tags=tags)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        match self.kind:
            case "bpe":
                encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
                return [[index + self._shift for index in encoding.ids] for encoding in encodings]
            case "characters":
                return [[self._ids.get(character, UNK) for character in text] for text in texts]
            case "whitespace":
                return [[self._ids.get(token, UNK) for token in _split(text)] for text in texts]
            case "words":
                splitter = word_splitter(self.split_digits)
                return [[index for word in _words(splitter, text) for index in self._word_ids(word)] for text in texts]

    def _word_ids(self, word: str) -> list[int]:
        """Return the id of a word or, if it is not in the vocabulary, the ids of its leading spaces and ``UNK``."""
        if word in self._ids:
            return [self._ids[word]]
        inside = word.lstrip()
        spaces = word[: len(word) - len(inside)]
        return [self._ids.get(space, UNK) for space in spaces] + [UNK] * bool(inside)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``. Special tokens and tags are skipped. Bytes that are not UTF-8 become "�"."""
        return decode_utf8(self._joined(ids), final=True)

    def decode_continuation(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Return the text that ``ids`` append to a preceding text. Unless ``final``, omit an incomplete character at
        the end.
        """
        return decode_utf8(self._joined(ids), final=final)

    def _joined(self, ids: Sequence[int]) -> bytes:
        """Return the bytes of ``ids``."""
        self._check_ids(ids)
        separator = b" " if self.kind == "whitespace" else b""
        pieces = (self._pieces[index] for index in ids)
        return separator.join(piece for piece in pieces if piece is not None)

    def merge_steps(self, text: str) -> list[MergeStep]:
        """Return the merges that segment ``text``, word by word, in the order in which they are applied.

        The last step of a word contains its final tokens. A word without merges, whose tokens are single bytes, has no
        steps. Only tokenizers of kind "bpe" have merges.
        """
        check_no_surrogates(text, 1)
        if self.kind != "bpe":
            return []
        words = enumerate(self.byte_spelled_words(text))
        return [step for index, word in words for step in self._merge_steps(index, word)]

    def _merge_steps(self, index: int, word: str) -> Iterator[MergeStep]:
        symbols, ranks = list(word), self.merge_ranks
        while places := [(ranks[pair], position) for position, pair in enumerate(pairwise(symbols)) if pair in ranks]:
            rank, position = min(places)
            left, right = symbols[position : position + 2]
            symbols[position : position + 2] = [left + right]
            pieces = tuple(_readable(_unspell(symbol)) for symbol in symbols)
            yield MergeStep(
                index, rank, _readable(_unspell(left)), _readable(_unspell(right)), pieces[position], pieces
            )

    def mandatory_ids(self) -> frozenset[int]:
        """Return the ids of special tokens, tags, bytes (for "bpe") and white space (for "words")."""
        bytes_ = self._ids.keys() & _BYTES.keys() if self.kind == "bpe" else ()
        spaces = [token for token in self._tokens if token.isspace()] if self.kind == "words" else ()
        return super().mandatory_ids().union(self._ids[token] for token in (*bytes_, *spaces))

    def with_required_ids(self, ids: Iterable[int]) -> set[int]:
        """Return ``ids`` and the ids of the intermediate tokens that merges need to produce them."""
        needed = set(ids)
        if self.kind == "bpe":
            ranks = self.merge_ranks
            for index in needed - self.mandatory_ids():
                made = symbols_of_merges(self._tokens[index - self._shift], lambda *pair: ranks.get(pair))
                needed |= {self._ids[token] for token in made}
        return needed

    def restrict_vocabulary(self, ids: Sequence[int]) -> Tokenizer:
        """Return a tokenizer with only these ids; see :meth:`TextTokenizer.restrict_vocabulary`."""
        tokens = [self._tokens[index - self._shift] for index in ids if index >= self._shift]
        kept = set(tokens)
        merges = [(left, right) for left, right in self._merges if {left, right, left + right} <= kept]
        return Tokenizer(self.kind, tokens, merges, self.tags, split_digits=self.split_digits)

    def _saved(self) -> Mapping[str, Any]:
        content = {"kind": self.kind, "tags": self.tags, "tokens": self._tokens, "merges": self._merges}
        saved = _Saved.parse_saved({**content, "split_digits": self.split_digits}, "tokenizer")
        plain, active = saved.as_dict(), saved.active_options().keys()
        return {name: value for name, value in plain.items() if name in active or name in _ALWAYS_SAVED}

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        vocabulary = {token: index for index, token in enumerate(self._tokens)}
        return _pipeline(models.BPE(vocab=vocabulary, merges=list(self._merges)), self.split_digits)

    @functools.cached_property
    def merge_ranks(self) -> Mapping[tuple[str, str], int]:
        """Maps each merge of "bpe", spelled in the byte alphabet, to its rank."""
        return {pair: rank for rank, pair in enumerate(self._merges)}

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Maps each token, as spelled in the vocabulary, to its id. Special tokens and tags are not included."""
        return self._ids

    def byte_spelled_words(self, text: str) -> list[str]:
        """Split ``text`` into words, which merges never cross, and return them spelled in the byte alphabet."""
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]

    def _name(self, index: int) -> str:
        if (name := self._names.get(index)) is None:
            name = self._names[index] = _readable(self._pieces[index] or b"")
        return name

    @classmethod
    def from_saved(cls, data: dict[str, Any], path: Path) -> Tokenizer:
        """Create a tokenizer from ``data``, the parsed content of the file ``path``.

        Raises:
            BundleError: A value is missing or invalid.
        """
        try:
            saved = _Saved.parse_saved(data, str(path))
        except ConfigError as error:
            problem = textwrap.shorten(str(error), 300, placeholder=" ...")
            raise BundleError(f"{problem}; the file is damaged, copy or save it again") from None
        return cls(saved.kind, saved.tokens, saved.merges, saved.tags, split_digits=saved.split_digits)


def language_tag(language: str) -> str:
    """Return the tag that selects a target language, such as "<2en>".

    Source: Johnson et al., "Google's Multilingual Neural Machine Translation System", 2017, section 3.
    """
    return f"<2{language}>"


def language_of_tag(tag: str) -> str:
    """Return the language of a tag created by :func:`language_tag`."""
    return tag.removeprefix("<2").removesuffix(">")


def _tag_problem(tags: Sequence[str]) -> str | None:
    names = [*SPECIALS, *tags]
    doubled = next((name for name in tags if names.count(name) > 1), None)
    return doubled and f"tag {doubled!r} is a duplicate or the name of a special token; choose another name"


# Newer options are saved only if they have an effect, because every saved option changes the fingerprint of the file.
_ALWAYS_SAVED = frozenset({"format", "version", "kind", "tags", "tokens", "merges", "split_digits"})


class _Saved(Config):
    """The format of the saved file. If its meaning changes, it needs a new version. Files of old versions must always
    load.
    """

    format: Literal["headway-tokenizer"] = "headway-tokenizer"
    version: Literal[1] = 1
    kind: TokenizerKind
    tags: tuple[str, ...] = ()
    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    split_digits: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> _Saved:
        known = set(self.tokens)
        if problem := _tag_problem(self.tags):
            raise ValueError(problem)
        if any("\ud800" <= character <= "\udfff" for character in "".join(self.tokens)):
            raise ValueError("a token contains a lone surrogate")
        if len(known) < len(self.tokens):
            raise ValueError("a token is listed twice")
        if self.kind == "bpe":
            if missing := _BYTES.keys() - known:
                raise ValueError(f"{len(missing)} of the 256 bytes have no token")
            if any(not token or set(token) - _BYTES.keys() for token in known):
                raise ValueError("a token is not spelled in the byte alphabet")
            # The library aborts the process if a merge is not in its vocabulary.
            if any(not known.issuperset((left, right, left + right)) for left, right in self.merges):
                raise ValueError("a merge joins or produces something that is not a token")
        return self


def _byte_alphabet() -> dict[str, int]:
    """Return the inverse of GPT-2's ``bytes_to_unicode``: a map from characters to bytes.

    Visible Latin-1 characters represent their own bytes, and characters from U+0100 on represent the other bytes.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def byte_symbols() -> list[str]:
    """Return the character that spells each byte in byte-level vocabularies, in byte order."""
    return sorted(_BYTES, key=_BYTES.__getitem__)


def _unspell(token: str) -> bytes:
    return bytes(_BYTES[character] for character in token)


def readable_piece(token: str) -> str:
    """Return the readable text of a token that is spelled in the byte alphabet; other tokens are unchanged."""
    return _readable(_unspell(token)) if _BYTES.keys() >= set(token) else token


def piece_bytes(token: str) -> bytes:
    """Return the bytes of a token that is spelled in the byte alphabet, or the UTF-8 encoding of another token."""
    return _unspell(token) if _BYTES.keys() >= set(token) else token.encode()


def _readable(piece: bytes) -> str:
    return piece.decode("utf-8", errors="headway.hexadecimal")


def _hexadecimal(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("headway.hexadecimal", _hexadecimal)


def word_splitter(split_digits: bool) -> Any:
    """Return the library's pre-tokenizer, which splits text into words, spelled in the byte alphabet."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, words]) if split_digits else words


def _pipeline(model: models.Model, split_digits: bool) -> tokenizers.Tokenizer:
    """Return a library tokenizer without a normalizer, added tokens or special tokens."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = word_splitter(split_digits)
    return library


def _learn_merges(texts: Iterator[str], room: int, config: TokenizerConfig) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most ``room`` tokens in id order, and the merges in the order of learning."""
    library = _pipeline(models.BPE(), config.split_digits)
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=config.min_frequency, show_progress=False, initial_alphabet=sorted(_BYTES)
    )
    library.train_from_iterator(texts, trainer)
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]


def _frequent_words(texts: Iterator[str], room: int, config: TokenizerConfig) -> list[str]:
    """Return at most ``room`` tokens: all white space characters of the texts, and the most frequent words.

    Equally frequent words are ordered by code points.
    """
    splitter = word_splitter(config.split_digits)
    counts = Counter(word for text in texts for word in _words(splitter, text))
    spaces = sorted({" ", *(space for word in counts if word.isspace() for space in word)})
    if room <= len(spaces):
        raise ConfigError(
            f"vocab_size = {config.vocab_size}: tags and {len(spaces)} white space characters leave no room for words; "
            f"expected at least {config.vocab_size - room + len(spaces) + 1}"
        )
    others = sorted(counts.keys() - set(spaces), key=lambda word: (-counts[word], word))
    return [*spaces, *others[: room - len(spaces)]]


def _words(splitter: Any, text: str) -> list[str]:
    """Return the words of a text. Their concatenation is the text."""
    return [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts. Raise :class:`DataError` if a text cannot be encoded in UTF-8, or if all texts are blank."""
    blank = True
    for number, text in enumerate(texts, start=1):
        check_no_surrogates(text, number)
        blank = blank and not text.strip()
        yield text
    if blank:
        raise DataError("there is no text from which to learn a vocabulary; expected at least one nonblank line")


def _split(text: str) -> list[str]:
    return [token for token in text.split(" ") if token]
