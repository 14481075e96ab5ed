"""Tokenize with the rules of Moses and byte-pair merges, for imported models that were trained with fairseq (FSMT).

Text is normalized and split into words and punctuation with the rules of Moses (Koehn et al., "Moses: Open Source
Toolkit for Statistical Machine Translation", 2007), implemented in the package `sacremoses`. Then merges join the
characters of each word (Sennrich et al., 2016); the last character of a word is marked with ``</w>``. The Moses
detokenizer joins the words again. Some details are lost: the types of quotation marks and spaces, and control
characters.

Unlike in `transformers`, tabs and line ends become spaces: `transformers` removes them like other control characters,
which joins the words that they separate.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import models

from headway.errors import BundleError, MissingPackageError
from headway.text.base import UNK
from headway.text.imported import ImportedTokenizer
from headway.text.merge_closure import symbols_of_merges

MosesRules = Literal["fairseq", "argos"]
END_OF_WORD = "</w>"
# the library's token for unknown characters; it cannot result from text, because no word is empty
_UNKNOWN = END_OF_WORD


class MosesTokenizer(ImportedTokenizer):
    """A tokenizer that applies the rules of Moses and then byte-pair merges.

    Args:
        language: Language of the rules, such as "de". Moses treats an unknown language as English.
        merges: Pairs of pieces to merge, in the order of learning.
        pieces: Piece of each id. The names of special tokens and unused rows have no effect.
        reserved_ids: Ids that encoding a text never returns, in addition to the four special ids.
        lower_case: Whether text is lower-cased before it is tokenized.
        rules: Variant of the rules: "fairseq" or "argos" (Argos Translate). "fairseq" also replaces Unicode
            punctuation, splits words at dashes, and removes control characters.
        origin: Name of the files in error messages.
    """

    kind = "moses"

    def __init__(
        self,
        language: str,
        merges: Sequence[tuple[str, str]],
        pieces: Sequence[str],
        reserved_ids: Iterable[int] = (),
        *,
        lower_case: bool = False,
        rules: MosesRules = "fairseq",
        origin: str = "a Moses tokenizer",
    ) -> None:
        if any("\ud800" <= character <= "\udfff" for character in "".join(pieces)):
            raise BundleError(
                f"{origin}: a piece contains a lone surrogate; the file is damaged, copy or import it again"
            )
        super().__init__([_readable(piece) for piece in pieces], reserved_ids, pieces)
        self.language, self.lower_case, self.merges = language, lower_case, tuple(merges)
        self.rules: MosesRules = rules
        text = (index for index in range(len(pieces)) if index not in self.reserved_ids and pieces[index] != _UNKNOWN)
        self._ids = {pieces[index]: index for index in text}
        try:
            import sacremoses
        except ImportError:
            raise MissingPackageError(f"{origin}: its tokenizer", "sacremoses") from None
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=language, pre_replace_unicode_punct=rules == "fairseq")
        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        words = [self._words(text.lower() if self.lower_case else text) for text in texts]
        encodings = self._library.encode_batch(words, is_pretokenized=True, add_special_tokens=False)
        ids = self._ids
        return [[ids.get(piece, UNK) for piece in encoding.tokens] for encoding in encodings]

    def _words(self, text: str) -> list[str]:
        """Split text into words and punctuation.

        With the rules "fairseq", a dash in a word becomes "@-@". XML special characters are escaped.
        """
        text = self._normalizer.normalize(re.sub(r"\s", " ", text))
        if self.rules == "fairseq":
            text = "".join(character for character in text if not unicodedata.category(character).startswith("C"))
        words = self._tokenizer.tokenize(text, aggressive_dash_splits=self.rules == "fairseq", escape=True)
        return [word for word in words if word]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``. Reserved ids and ``UNK`` are skipped."""
        words = "".join(self._pieces[index] for index in self._text_ids(ids)).replace(END_OF_WORD, " ").split()
        text: str = self._detokenizer.detokenize(words)
        return text

    def with_required_ids(self, ids: Iterable[int]) -> set[int]:
        """Return ``ids`` and the ids of the intermediate pieces that merges need to produce them."""
        made = self._made_by_merges(self._pieces[index] for index in ids)
        return {*ids, *(self._ids[piece] for piece in made if piece in self._ids)}

    def restrict_vocabulary(self, ids: Sequence[int]) -> MosesTokenizer:
        """Return a tokenizer with only these ids; see :meth:`TextTokenizer.restrict_vocabulary`."""
        pieces = [self._pieces[index] for index in ids]
        removed = self._ids.keys() - self._made_by_merges(pieces)  # results of merges may not have an id
        merges = [(left, right) for left, right in self.merges if removed.isdisjoint((left, right, left + right))]
        reserved = [new for new, old in enumerate(ids) if old in self.reserved_ids]
        options: dict[str, Any] = {"lower_case": self.lower_case, "rules": self.rules}
        return MosesTokenizer(self.language, merges, pieces, reserved, **options)

    def _made_by_merges(self, pieces: Iterable[str]) -> set[str]:
        ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        made = set[str]()
        for piece in pieces:
            *symbols, last = list(piece.removesuffix(END_OF_WORD)) or [""]
            end = last + END_OF_WORD if piece.endswith(END_OF_WORD) else last
            made.update(symbols_of_merges([*symbols, end], lambda *pair: ranks.get(pair)))
        return made

    @classmethod
    def from_saved(cls, saved: dict[str, Any], path: Path) -> MosesTokenizer:
        """Create the tokenizer from the parsed content of its file."""
        merges = [(str(left), str(right)) for left, right in saved["merges"]]
        pieces, reserved = [str(piece) for piece in saved["pieces"]], [int(index) for index in saved["reserved"]]
        language, lower_case = str(saved["language"]), bool(saved["lower_case"])
        rules: MosesRules = "argos" if saved.get("rules") == "argos" else "fairseq"
        return cls(language, merges, pieces, reserved, lower_case=lower_case, rules=rules, origin=str(path))

    def _fields(self) -> Mapping[str, Any]:
        return {
            "language": self.language,
            "lower_case": self.lower_case,
            **({"rules": self.rules} if self.rules != "fairseq" else {}),
            "reserved": sorted(self.reserved_ids),
            "pieces": self._pieces,
            "merges": self.merges,
        }

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        """The library tokenizer that applies the merges.

        Intermediate pieces of a word may be missing from the vocabulary. The vocabulary of this model therefore
        contains all possible pieces, and the final pieces are looked up in the tokenizer's own vocabulary afterwards.
        """
        parts = (part for left, right in self.merges for part in (left, right, left + right))
        every = dict.fromkeys((_UNKNOWN, *self._ids, *parts))
        model = models.BPE(
            vocab={piece: index for index, piece in enumerate(every)},
            merges=list(self.merges),
            unk_token=_UNKNOWN,
            end_of_word_suffix=END_OF_WORD,
        )
        return tokenizers.Tokenizer(model)


def _readable(piece: str) -> str:
    return piece.removesuffix(END_OF_WORD) + " " if piece.endswith(END_OF_WORD) else piece
