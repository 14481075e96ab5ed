"""The vocabularies of CTranslate2 and Marian (lists of tokens in the order of rows), and tokenizers that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headway.errors import BundleError
from headway.interop.tokenizer_importing import language_codes
from headway.interop.vocabulary_order import VocabularyOrder
from headway.text.base import NUM_SPECIAL, TextTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.tokenizer import Tokenizer

_PIECE_MARKS = ("▁", "Ġ")  # represent a space in SentencePiece and byte-level vocabularies
_FEWEST_LANGUAGES = 2  # a single token that looks like a language code may be text


@dataclass(frozen=True)
class StoredVocabulary:
    """The vocabulary of one side, with the ids in the file that it was read from, and its order in Headway.

    Attributes:
        tokens: The token of each stored id. The last rows of the weights may have no token.
        order: The order of the rows in Headway.
        special_ids: The stored ids of tokens that never occur in text.
    """

    tokens: Sequence[str]
    order: VocabularyOrder
    special_ids: frozenset[int]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The stored id of each token. If a token occurs several times, its first id is used."""
        return {token: index for index, token in reversed([*enumerate(self.tokens)])}

    @cached_property
    def ordered_tokens(self) -> list[str]:
        """The token of each Headway id. Rows without a token, or with the token of another row, get a name that never
        occurs in text.
        """
        ids, tokens = self.ids, self.tokens
        return [
            tokens[old] if old < len(tokens) and ids[tokens[old]] == old else f"<unused {new}>"
            for new, old in enumerate(self.order.order)
        ]

    @cached_property
    def languages(self) -> dict[str, int]:
        """The stored id of each language code, for models whose languages are selected by tokens."""
        families = (language_codes(family, self.ids) for family in ("m2m_100", "mbart", "marian"))
        return next((codes for codes in families if len(codes) >= _FEWEST_LANGUAGES), {})

    def sentencepiece_tokenizer(self, model: Path) -> SentencePieceTokenizer:
        """Return the tokenizer of a SentencePiece model. The vocabulary determines the ids of its pieces."""
        try:
            content = model.read_bytes()
        except OSError as error:
            raise BundleError(f"{model}: cannot be read ({error.strerror})") from None
        special = self.special_ids.union(self.languages.values())
        reserved = [new for new, old in enumerate(self.order.order) if old in special or old >= len(self.tokens)]
        return SentencePieceTokenizer(content, self.ordered_tokens, reserved, str(model))

    def whitespace_tokenizer(self, folder: Path, accepted: str) -> Tokenizer:
        """Return a tokenizer for texts that consist of tokens separated by spaces.

        Raises:
            BundleError: The vocabulary consists of pieces into which only the model's tokenizer can split a text. The
                message names the ``accepted`` files.
        """
        pieces = [token for token in self.tokens if token.startswith(_PIECE_MARKS)]
        if len(pieces) > len(self.tokens) // 10:
            raise BundleError(
                f"{folder}: the vocabulary consists of pieces such as {pieces[0]!r}, but the folder does not contain "
                f"the tokenizer that splits a text into them; put its file into the folder: {accepted}"
            )
        return Tokenizer("whitespace", self.ordered_tokens[NUM_SPECIAL:])

    def headway_ids(self, codes: Mapping[str, int]) -> dict[str, int]:
        """Return the Headway id of each name, given the stored ids."""
        return dict(zip(codes, self.order.to_headway_ids(codes.values()), strict=True))


DescribedTokenizers = tuple[TextTokenizer, TextTokenizer, str]
"""The source tokenizer, the target tokenizer, and their description."""


def sentencepiece_tokenizers(
    source: StoredVocabulary, target: StoredVocabulary, models: tuple[Path, Path]
) -> DescribedTokenizers:
    """Return the tokenizers of two SentencePiece models. If both sides share model and vocabulary, it is the same
    object.

    Raises:
        BundleError: A file cannot be read.
    """
    first = source.sentencepiece_tokenizer(models[0])
    is_shared = source is target and models[0] == models[1]
    second = first if is_shared else target.sentencepiece_tokenizer(models[1])
    return first, second, f"SentencePiece ({', '.join(dict.fromkeys(model.name for model in models))})"


def whitespace_tokenizers(
    source: StoredVocabulary, target: StoredVocabulary, folder: Path, accepted: str
) -> DescribedTokenizers:
    """Return tokenizers for texts that consist of tokens separated by spaces.

    Raises the same exception as :meth:`StoredVocabulary.whitespace_tokenizer`.
    """
    first = source.whitespace_tokenizer(folder, accepted)
    second = first if source is target else target.whitespace_tokenizer(folder, accepted)
    return first, second, "no tokenizer: texts are tokens separated by spaces"
