"""From text to token ids and back, without loss: byte-pair encoding over the bytes of UTF-8.

Byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, section 3.2)
starts from single symbols and, again and again, joins the pair of neighbours that is most frequent in the corpus. The
pairs in the order of their learning are the *merges*; the place of a merge in that order is its *rank*. A new word is
segmented by applying the merge of lowest rank that fits, leftmost first, until none fits.

As in Wang et al. ("Neural Machine Translation with Byte-Level Subwords", 2020) and GPT-2 (Radford et al., 2019) the
first symbols are the 256 bytes, so no character is unknown: every string that UTF-8 can hold survives encoding.
Words are cut by GPT-2's expression, which keeps the space before a word as part of it; merges never cross words. Inside
this file, in the saved JSON and in Hugging Face `tokenizers`, which trains and segments, a byte is *spelled* as one
printable character (GPT-2's ``bytes_to_unicode``: the space is "Ġ"). People see :meth:`Tokenizer.display` instead.

Departure: the special tokens and the tags are unknown to the library. Its own added tokens are found inside text, so a
sentence about "</s>" would end early. Ours are the ids below the vocabulary, which is shifted up; text cannot make
them:

    0 <pad>    1 <bos>    2 <eos>    3 <unk>    4... the tags    then the vocabulary
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import tokenizers
from pydantic import Field, model_validator
from tokenizers import models, pre_tokenizers, trainers

from headway.config import Config, nearest
from headway.errors import BundleError, ConfigError, DataError
from headway.storage import atomic_write

__all__ = [
    "BOS",
    "EOS",
    "NUM_SPECIAL",
    "PAD",
    "SPECIALS",
    "UNK",
    "MergeStep",
    "Tokenizer",
    "TokenizerConfig",
    "language_of",
    "language_tag",
    "readable_piece",
    "refuse_surrogates",
]

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
NUM_SPECIAL = len(SPECIALS)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

Kind = Literal["bpe", "characters", "whitespace"]


class TokenizerConfig(Config):
    """How text becomes tokens."""

    kind: Kind = Field(
        default="bpe",
        description="What a token is: a byte-pair piece (bpe), one character (characters), or what stands between "
        "spaces (whitespace, for ready-made symbols such as phones).",
    )
    vocab_size: int = Field(
        default=8000, ge=300, description="Most ids that a bpe vocabulary may have, special ids included."
    )
    joint: bool = Field(default=True, description="Whether source and target share one vocabulary.")
    min_frequency: int = Field(
        default=2, ge=1, description="How often a pair must occur in the training text to become a bpe token."
    )
    split_digits: bool = Field(
        default=False, description="Whether each digit is a bpe token of its own; helps where numbers are copied."
    )
    sample_lines: int = Field(
        default=500_000,
        ge=1,
        description="Most training examples that a vocabulary is learned from, evenly spread over all corpora; this "
        "bounds time and memory.",
    )


@dataclass(frozen=True)
class MergeStep:
    """One merge in the segmentation of one word; the pieces are readable, as :meth:`Tokenizer.display` shows them.

    Attributes:
        word: Which word of the text, counted from 0.
        rank: Place of the merge in the order of learning, counted from 0.
        left: The piece that was joined with ``right`` on its right.
        right: See ``left``.
        result: The piece that they became.
        segmentation: The pieces of the word after this merge.
    """

    word: int
    rank: int
    left: str
    right: str
    result: str
    segmentation: tuple[str, ...]


class Tokenizer:
    """A vocabulary and the way between text and its ids. Made by :meth:`train` or :meth:`load`.

    The kinds differ in what they keep. "bpe" keeps every string. "characters" keeps the characters seen in training;
    another one becomes ``UNK`` and is decoded as "�". "whitespace" keeps tokens between single spaces (U+0020): runs of
    spaces and spaces at the ends are lost, and unseen tokens become ``UNK``.

    Args:
        kind: What a token is; see :class:`TokenizerConfig`.
        tokens: The vocabulary in the order of its ids; for "bpe" spelled in the byte alphabet.
        merges: The pairs that "bpe" joins, in the order of learning.
        tags: Names of further ids that text can never produce, such as the language tag "<2en>".
        split_digits: Whether "bpe" cuts text at every digit first.
    """

    def __init__(
        self,
        kind: Kind,
        tokens: Sequence[str],
        merges: Sequence[tuple[str, str]] = (),
        tags: Sequence[str] = (),
        *,
        split_digits: bool = False,
    ) -> None:
        if problem := _tag_problem(tags):
            raise ConfigError(problem)
        self.kind: Kind = kind
        self.tags = tuple(tags)
        self.split_digits = split_digits
        self._tokens = tuple(tokens)
        self._merges = tuple(merges)
        self._shift = NUM_SPECIAL + len(self.tags)
        self._ids = {token: index for index, token in enumerate(tokens, start=self._shift)}
        # What each id contributes to decoded text; None contributes nothing, not even a separator.
        self._pieces: list[bytes | None] = [None] * self._shift
        self._pieces += [_unspell(token) if kind == "bpe" else token.encode() for token in tokens]
        if kind != "bpe":
            self._pieces[UNK] = REPLACEMENT.encode()

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig, *, tags: Sequence[str] = ()) -> Tokenizer:
        """Learn a vocabulary from ``texts``, read once and lazily. The same texts give the same vocabulary."""
        texts = _checked(texts)
        match config.kind:
            case "bpe":
                room = config.vocab_size - NUM_SPECIAL - len(tags)
                if room < len(_BYTES):
                    raise ConfigError(
                        f"vocab_size = {config.vocab_size}: {len(tags)} tags leave room for {room} tokens, and bpe "
                        f"needs 256 for the bytes; expected at least {config.vocab_size - room + len(_BYTES)}"
                    )
                return cls("bpe", *_learn_merges(texts, room, config), tags, split_digits=config.split_digits)
            case "characters":
                return cls("characters", sorted({character for text in texts for character in text}), tags=tags)
            case "whitespace":
                return cls("whitespace", sorted({token for text in texts for token in _split(text)}), tags=tags)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special tokens and tags included."""
        return len(self._pieces)

    def tag_id(self, name: str) -> int:
        """The id of a tag."""
        if name not in self.tags:
            hint = nearest(name, self.tags) if self.tags else "this vocabulary has none"
            raise ConfigError(f"unknown tag {name!r}; {hint}")
        return NUM_SPECIAL + self.tags.index(name)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, without special tokens around them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; much faster than one by one, for the library uses all processors."""
        for number, text in enumerate(texts, start=1):
            refuse_surrogates(text, number)
        match self.kind:
            case "bpe":
                encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
                return [[index + self._shift for index in encoding.ids] for encoding in encodings]
            case "characters":
                return [[self._ids.get(character, UNK) for character in text] for text in texts]
            case "whitespace":
                return [[self._ids.get(token, UNK) for token in _split(text)] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``. Special tokens and tags are skipped; bytes that are no UTF-8 become "�"."""
        self._check_ids(ids)
        separator = b" " if self.kind == "whitespace" else b""
        pieces = (self._pieces[index] for index in ids)
        return separator.join(piece for piece in pieces if piece is not None).decode("utf-8", errors="replace")

    def tokens(self, text: str) -> list[str]:
        """The readable pieces of ``text``; see :meth:`display`."""
        return self.display(self.encode(text))

    def display(self, ids: Sequence[int]) -> list[str]:
        """Each id for people: the text of its token, or the name of a special token or a tag.

        Bytes of a character that several tokens share are shown as "<0xF0>"; apart from these, the pieces of a "bpe" or
        "characters" text joined together are the text.
        """
        self._check_ids(ids)
        return [self._names[index] for index in ids]

    def merges_applied(self, text: str) -> list[MergeStep]:
        """The merges that segment ``text``, word by word, in the order in which they apply; empty unless "bpe".

        A word's last step holds its final pieces. A word that no merge fits has no step: its pieces are its bytes.
        """
        refuse_surrogates(text, 1)
        if self.kind != "bpe":
            return []
        words = enumerate(self.spelled_words(text))
        return [step for index, word in words for step in self._merge_steps(index, word)]

    def _merge_steps(self, index: int, word: str) -> Iterator[MergeStep]:
        symbols = list(word)
        while places := [(self.ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in self.ranks]:
            rank, at = min(places)
            left, right = symbols[at : at + 2]
            symbols[at : at + 2] = [left + right]
            pieces = tuple(_readable(_unspell(symbol)) for symbol in symbols)
            yield MergeStep(index, rank, _readable(_unspell(left)), _readable(_unspell(right)), pieces[at], pieces)

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json``, whole or not at all; the folder is made where it is missing."""
        with atomic_write(folder / f"{name}.json") as aside:
            aside.write_text(self._content, encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, folder: Path, name: str) -> Tokenizer:
        """Read what :meth:`save` wrote."""
        saved = _read(folder / f"{name}.json")
        return cls(saved.kind, saved.tokens, saved.merges, saved.tags, split_digits=saved.split_digits)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the saved file, in hexadecimal: equal when and only when two tokenizers are."""
        return hashlib.sha256(self._content.encode()).hexdigest()

    @functools.cached_property
    def _content(self) -> str:
        saved = _Saved(
            kind=self.kind,
            tags=self.tags,
            tokens=self._tokens,
            merges=self._merges,
            split_digits=self.split_digits,
        )
        return json.dumps(saved.as_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        vocabulary = {token: index for index, token in enumerate(self._tokens)}
        return _pipeline(models.BPE(vocab=vocabulary, merges=list(self._merges)), self.split_digits)

    @functools.cached_property
    def ranks(self) -> Mapping[tuple[str, str], int]:
        """The merges of "bpe", spelled in the byte alphabet, and the rank of each."""
        return {pair: rank for rank, pair in enumerate(self._merges)}

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of each token as the vocabulary spells it, special tokens and tags apart."""
        return self._ids

    def spelled_words(self, text: str) -> list[str]:
        """The words of ``text`` that "bpe" never joins, spelled in the byte alphabet."""
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]

    def piece_ids(self, pieces: Iterable[str]) -> list[int]:
        """The ids of pieces as the vocabulary spells them."""
        return [self._ids[piece] for piece in pieces]

    @functools.cached_property
    def _names(self) -> list[str]:
        pieces = self._pieces[self._shift :]
        return [*SPECIALS, *self.tags, *(_readable(piece) for piece in pieces if piece is not None)]

    def _check_ids(self, ids: Sequence[int]) -> None:
        if wrong := [index for index in ids if not 0 <= index < self.vocab_size]:
            raise ConfigError(
                f"id {wrong[0]} is not in this vocabulary, whose ids are 0 to {self.vocab_size - 1}; "
                "were the ids made by another tokenizer?"
            )


def language_tag(language: str) -> str:
    """The name of the tag before a source that asks for ``language``, such as "<2en>" (Johnson et al., "Google's
    Multilingual Neural Machine Translation System", 2017, section 3)."""
    return f"<2{language}>"


def language_of(tag: str) -> str:
    """The language that :func:`language_tag` made ``tag`` of."""
    return tag.removeprefix("<2").removesuffix(">")


def _tag_problem(tags: Sequence[str]) -> str | None:
    names = [*SPECIALS, *tags]
    doubled = next((name for name in tags if names.count(name) > 1), None)
    return doubled and f"tag {doubled!r} is given twice or is the name of a special token; choose another"


class _Saved(Config):
    """The saved file. A change of its meaning needs a new version, and old versions must load for ever."""

    format: Literal["headway-tokenizer"] = "headway-tokenizer"
    version: Literal[1] = 1
    kind: Kind
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
            raise ValueError("a token holds a lone surrogate")
        if len(known) < len(self.tokens):
            raise ValueError("a token is listed twice")
        if self.kind == "bpe":
            if missing := _BYTES.keys() - known:
                raise ValueError(f"{len(missing)} of the 256 bytes have no token")
            if any(not token or set(token) - _BYTES.keys() for token in known):
                raise ValueError("a token is not spelled in the byte alphabet")
            # The library aborts, with no exception of Python's, on some merges outside of its vocabulary.
            if any(not known.issuperset((left, right, left + right)) for left, right in self.merges):
                raise ValueError("a merge joins or makes a piece that is not a token")
        return self


def _read(path: Path) -> _Saved:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file; expected the tokenizer that Headway saved with the model") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror}); expected a tokenizer of Headway's") from None
    except (ValueError, RecursionError):
        raise BundleError(f"{path}: not valid JSON; the file is truncated or damaged, copy or save it again") from None
    if not isinstance(data, dict) or data.get("format") != "headway-tokenizer":
        raise BundleError(f"{path}: not a tokenizer of Headway's (no format = 'headway-tokenizer' in it)")
    if data.get("version") != 1:
        raise BundleError(f"{path}: version {data.get('version')!r} is unknown (known: 1); install a newer Headway")
    try:
        return _Saved.parse(data, str(path))
    except ConfigError as error:
        problem = textwrap.shorten(str(error), 300, placeholder=" ...")
        raise BundleError(f"{problem}; the file is damaged, copy or save it again") from None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's ``bytes_to_unicode``, turned round: visible Latin-1 as itself, the other bytes from U+0100 up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTES = _byte_alphabet()


def _unspell(token: str) -> bytes:
    return bytes(_BYTES[character] for character in token)


def readable_piece(token: str) -> str:
    """The text of a token spelled in the byte alphabet; one that is not spelled in it is shown as it is."""
    return _readable(_unspell(token)) if _BYTES.keys() >= set(token) else token


def _readable(piece: bytes) -> str:
    return piece.decode("utf-8", errors="headway.hexadecimal")


def _hexadecimal(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("headway.hexadecimal", _hexadecimal)


def _pipeline(model: models.Model, split_digits: bool) -> tokenizers.Tokenizer:
    """Bytes and words as this file's docstring has them: no normaliser, no added tokens, nothing around the text."""
    library = tokenizers.Tokenizer(model)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if split_digits else words
    return library


def _learn_merges(texts: Iterator[str], room: int, config: TokenizerConfig) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens, at most ``room``, in the order of their ids, and the merges in the order of learning."""
    library = _pipeline(models.BPE(), config.split_digits)
    trainer = trainers.BpeTrainer(
        vocab_size=room, min_frequency=config.min_frequency, show_progress=False, initial_alphabet=sorted(_BYTES)
    )
    library.train_from_iterator(texts, trainer)
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, with an error for one that UTF-8 cannot hold and for there being none to learn from."""
    blank = True
    for number, text in enumerate(texts, start=1):
        refuse_surrogates(text, number)
        blank = blank and not text.strip()
        yield text
    if blank:
        raise DataError("there is no text to learn a vocabulary from; expected at least one line that is not blank")


def refuse_surrogates(text: str, number: int) -> None:
    """:class:`DataError` for the text of this number where UTF-8 cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"text {number}, character {error.start + 1}: lone surrogate U+{ord(text[error.start]):04X}, which is not "
            "valid Unicode text; replace it, or read its source as UTF-8"
        ) from None


def _split(text: str) -> list[str]:
    return [token for token in text.split(" ") if token]
