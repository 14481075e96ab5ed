"""SentencePiece models (Kudo and Richardson, "SentencePiece", 2018) of imported models, in Headway's order of ids.

The package `sentencepiece` itself cuts and joins: conversions to the library `tokenizers` differ from it on odd text
(they normalise whole grapheme clusters where SentencePiece takes the longest rule at each character, and find control
pieces such as "</s>" in text). Families keep their own numbering of pieces beside the model (``vocab.json`` of OPUS-MT
and M2M-100), so a piece is looked up by its text; one that the vocabulary does not hold is ``UNK``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headway.errors import BundleError, MissingPackageError
from headway.storage import atomic_write
from headway.text.foreign import ForeignTokenizer
from headway.text.tokenizer import UNK, refuse_surrogates

__all__ = ["SentencePieceTokenizer", "sentencepiece_pieces"]


class SentencePieceTokenizer(ForeignTokenizer):
    """A SentencePiece model and the vocabulary that goes with it.

    Args:
        model: The content of a ``.spm`` or ``.model`` file.
        pieces: The piece of each id; special ones, languages and unused rows by any name.
        reserved: Ids that text never makes, besides the four special ones.
        origin: What an error calls the file.
    """

    kind = "sentencepiece"

    def __init__(
        self, model: bytes, pieces: Sequence[str], reserved: Iterable[int] = (), origin: str = "a SentencePiece model"
    ) -> None:
        reserved = frozenset(reserved)
        super().__init__([piece.replace("▁", " ") for piece in pieces], reserved)
        self._model, self._pieces = model, tuple(pieces)
        self._ids = {piece: index for index, piece in enumerate(pieces) if index not in self.reserved}
        self._processor = _processor(model, origin)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; a piece that the vocabulary does not hold is ``UNK``."""
        for number, text in enumerate(texts, start=1):
            refuse_surrogates(text, number)
        ids = self._ids
        return [[ids.get(piece, UNK) for piece in row] for row in self._processor.encode(list(texts), out_type=str)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without spaces at its ends; reserved ids and ``UNK`` are skipped."""
        pieces = [self._pieces[index] for index in self.kept(ids)]
        text: str = self._processor.decode_pieces(pieces)
        return text.replace("▁", " ").strip(" ")

    @property
    def spelled(self) -> tuple[str, ...]:
        """The piece of each id, as the model spells it."""
        return self._pieces

    @property
    def model(self) -> bytes:
        """The content of the SentencePiece model's file."""
        return self._model

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json`` and the model beside it, ``folder/name.spm``."""
        with atomic_write(folder / f"{name}.spm") as aside:
            aside.write_bytes(self._model)
        super().save(folder, name)

    @classmethod
    def restored(cls, saved: dict[str, Any], path: Path) -> SentencePieceTokenizer:
        """The tokenizer of a file whose JSON was read already; the model is beside it."""
        model = path.with_suffix(".spm")
        try:
            content = model.read_bytes()
        except OSError as error:
            raise BundleError(f"{model}: cannot be read ({error.strerror}); copy or import the folder again") from None
        if hashlib.sha256(content).hexdigest() != saved.get("model"):
            raise BundleError(
                f"{model}: not the model that {path.name} was saved with; copy or import the folder again"
            )
        try:
            return cls(content, [str(piece) for piece in saved["pieces"]], map(int, saved["reserved"]), str(model))
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{path}: damaged ({error!r}); copy or import it again") from None

    def saved(self) -> dict[str, Any]:
        """The hash of the model, which is in a file of its own, reserved ids and pieces."""
        model = hashlib.sha256(self._model).hexdigest()
        return {"model": model, "reserved": sorted(self.reserved), "pieces": self._pieces}


def sentencepiece_pieces(model: bytes, origin: str) -> list[str]:
    """The pieces of a SentencePiece model in the order of its own ids."""
    processor = _processor(model, origin)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def _processor(model: bytes, origin: str) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise MissingPackageError(f"{origin}: its tokenizer", "sentencepiece", "sentencepiece") from None
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise BundleError(f"{origin}: not a SentencePiece model, or a damaged one; copy or download it again") from None
    return processor
