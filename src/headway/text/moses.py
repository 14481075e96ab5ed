"""Moses's rules and byte-pair merges, of imported models that were trained with fairseq (FSMT), in Headway's order of
ids.

Text is normalised and cut into words and punctuation by the rules of Moses (Koehn et al., "Moses: Open Source Toolkit
for Statistical Machine Translation", 2007), which the package `sacremoses` ports; then merges join each word's
characters (Sennrich et al., 2016), a word's last character marked by ``</w>``. Moses's detokenizer puts text together
again. That way loses what it does not care for: the kind of quotation marks and of spaces, control characters.

Departure: tabs and line ends are spaces here. `transformers` drops them with the other control characters, and so joins
the words that they part.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from headway.errors import BundleError, MissingPackageError
from headway.text.foreign import ForeignTokenizer
from headway.text.tokenizer import UNK, refuse_surrogates

__all__ = ["MosesTokenizer"]

_END = "</w>"
_UNKNOWN = _END  # the library's name of an unknown character: no piece of text, since no word is empty


class MosesTokenizer(ForeignTokenizer):
    """Moses's rules, merges and the vocabulary that goes with them.

    Args:
        language: Whose rules: "de", say. Moses treats a language that it does not know as English.
        merges: The pairs that are joined, in the order of learning.
        pieces: The piece of each id; special ones and unused rows by any name.
        reserved: Ids that text never makes, besides the four special ones.
        lower_case: Whether text is lower-cased first.
        origin: What an error calls the files.
    """

    kind = "moses"

    def __init__(
        self,
        language: str,
        merges: Sequence[tuple[str, str]],
        pieces: Sequence[str],
        reserved: Iterable[int] = (),
        *,
        lower_case: bool = False,
        origin: str = "a Moses tokenizer",
    ) -> None:
        if any("\ud800" <= character <= "\udfff" for character in "".join(pieces)):
            raise BundleError(f"{origin}: a piece holds a lone surrogate; the file is damaged, copy or import it again")
        super().__init__([_readable(piece) for piece in pieces], reserved)
        self.language, self.lower_case, self.merges = language, lower_case, tuple(merges)
        self._pieces = tuple(pieces)
        text = (index for index in range(len(pieces)) if index not in self.reserved and pieces[index] != _UNKNOWN)
        self._ids = {pieces[index]: index for index in text}
        self._rules = _Rules(language, origin)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; a piece that the vocabulary does not hold is ``UNK``."""
        for number, text in enumerate(texts, start=1):
            refuse_surrogates(text, number)
        words = [self._rules.words(text.lower() if self.lower_case else text) for text in texts]
        encodings = self._library.encode_batch(words, is_pretokenized=True, add_special_tokens=False)
        ids = self._ids
        return [[ids.get(piece, UNK) for piece in encoding.tokens] for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; reserved ids and ``UNK`` are skipped."""
        words = "".join(self._pieces[index] for index in self.kept(ids)).replace(_END, " ").split()
        return self._rules.text(words)

    @property
    def spelled(self) -> tuple[str, ...]:
        """The piece of each id, with its mark of a word's end."""
        return self._pieces

    @classmethod
    def restored(cls, saved: dict[str, Any], path: Path) -> MosesTokenizer:
        """The tokenizer of a file whose JSON was read already."""
        try:
            merges = [(str(left), str(right)) for left, right in saved["merges"]]
            pieces = [str(piece) for piece in saved["pieces"]]
            reserved = [int(index) for index in saved["reserved"]]
            language, lower_case = str(saved["language"]), bool(saved["lower_case"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BundleError(f"{path}: damaged ({error!r}); copy or import it again") from None
        return cls(language, merges, pieces, reserved, lower_case=lower_case, origin=str(path))

    def saved(self) -> dict[str, Any]:
        """All that :meth:`restored` wants."""
        return {
            "language": self.language,
            "lower_case": self.lower_case,
            "reserved": sorted(self.reserved),
            "pieces": self._pieces,
            "merges": self.merges,
        }

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        """The merges. They may pass through pieces that the vocabulary does not hold, so the library gets one of all
        pieces that there can be, and ours is looked up after it."""
        parts = (part for left, right in self.merges for part in (left, right, left + right))
        every = dict.fromkeys((_UNKNOWN, *self._ids, *parts))
        model = models.BPE(
            vocab={piece: index for index, piece in enumerate(every)},
            merges=list(self.merges),
            unk_token=_UNKNOWN,
            end_of_word_suffix=_END,
        )
        return tokenizers.Tokenizer(model)


class _Rules:
    """Moses's rules of one language."""

    def __init__(self, language: str, origin: str) -> None:
        try:
            import sacremoses
        except ImportError:
            raise MissingPackageError(f"{origin}: its tokenizer", "sacremoses", "moses") from None
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=language, pre_replace_unicode_punct=True)
        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)

    def words(self, text: str) -> list[str]:
        """Words and punctuation, with "@-@" for a dash inside a word, and XML's special characters escaped."""
        text = self._normalizer.normalize(re.sub(r"\s", " ", text))
        text = "".join(character for character in text if not unicodedata.category(character).startswith("C"))
        words: list[str] = self._tokenizer.tokenize(text, aggressive_dash_splits=True, escape=True)
        return [word for word in words if word]

    def text(self, words: list[str]) -> str:
        """The other way."""
        text: str = self._detokenizer.detokenize(words)
        return text


def _readable(piece: str) -> str:
    return piece.removesuffix(_END) + " " if piece.endswith(_END) else piece
