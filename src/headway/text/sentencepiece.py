"""SentencePiece tokenizers (Kudo and Richardson 2018) of imported models, with ids in Headway's order.

Text is segmented and joined by the package `sentencepiece` itself, because conversions to the library `tokenizers` give
different results for unusual text. (They normalize whole grapheme clusters, whereas SentencePiece applies the longest
rule at each character, and they match control pieces such as "</s>" in text.) Some model families number the pieces in
a separate file (``vocab.json`` of OPUS-MT and M2M-100), so the id of a piece is looked up by its text. Pieces that are
not in the vocabulary become ``UNK``.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.errors import BundleError, MissingPackageError
from headway.storage import atomic_write
from headway.text.added_tokens import AddedToken, added_token_splitter
from headway.text.base import UNK
from headway.text.imported import ImportedTokenizer, byte_token_values
from headway.text.piece_model import PieceModel


class SentencePieceTokenizer(ImportedTokenizer):
    """A SentencePiece model and its vocabulary.

    Args:
        model_proto: Content of a ``.spm`` or ``.model`` file.
        pieces: Piece of each id. The names of special tokens, languages and unused rows have no effect.
        reserved_ids: Ids that encoding a text never returns, in addition to the four special ids.
        origin: Name of the file in error messages.
        added_tokens: Pieces that are matched in text before the model is applied.
    """

    kind = "sentencepiece"

    def __init__(
        self,
        model_proto: bytes,
        pieces: Sequence[str],
        reserved_ids: Iterable[int] = (),
        origin: str = "SentencePiece",
        added_tokens: Iterable[AddedToken] = (),
    ) -> None:
        self.model_proto, self._processor = model_proto, _processor(model_proto, origin)
        is_byte, id_of = self._processor.is_byte, self._processor.piece_to_id
        super().__init__(
            [piece.replace("▁", " ") for piece in pieces],
            reserved_ids,
            pieces,
            byte_token_values({index: piece for index, piece in enumerate(pieces) if is_byte(id_of(piece))}),
        )
        self._ids = {piece: index for index, piece in enumerate(pieces) if index not in self.reserved_ids}
        self.added_tokens = tuple(added_tokens)
        if unknown := [token.content for token in self.added_tokens if token.content not in self._ids]:
            raise BundleError(f"{origin}: the added token {unknown[0]!r} is not in the vocabulary")
        self._split = added_token_splitter(self.added_tokens) if self.added_tokens else None

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        ids = self._ids
        if self._split is None:
            return [[ids.get(piece, UNK) for piece in row] for row in self._processor.encode(texts, out_type=str)]
        rows: list[list[int]] = []
        for text in texts:
            row: list[int] = []
            for part, is_added in self._split(text):
                pieces = [part] if is_added else self._processor.encode(part, out_type=str)
                row += [ids.get(piece, UNK) for piece in pieces]
            rows.append(row)
        return rows

    @functools.cached_property
    def _piece_model(self) -> PieceModel:
        return PieceModel(self.model_proto)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, without leading and trailing spaces. Reserved ids and ``UNK`` are skipped."""
        return self._joined(ids).strip(" ")

    def _joined(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode_pieces([self._pieces[index] for index in self._text_ids(ids)])
        return text.replace("▁", " ")

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json`` and the model as ``folder/name.spm``."""
        with atomic_write(folder / f"{name}.spm") as aside:
            aside.write_bytes(self.model_proto)
        super().save(folder, name)

    @classmethod
    def from_saved(cls, saved: dict[str, Any], path: Path) -> SentencePieceTokenizer:
        """Create the tokenizer from the parsed content of its file and the model file in the same folder."""
        model = path.with_suffix(".spm")
        try:
            content = model.read_bytes()
        except OSError as error:
            raise BundleError(f"{model}: cannot be read ({error.strerror}); copy or import the folder again") from None
        if hashlib.sha256(content).hexdigest() != saved.get("model"):
            raise BundleError(
                f"{model}: differs from the model with which {path.name} was saved; copy or import the folder again"
            )
        pieces, added = [str(piece) for piece in saved["pieces"]], saved.get("added_tokens", [])
        return cls(content, pieces, map(int, saved["reserved"]), str(model), [AddedToken(**token) for token in added])

    def with_required_ids(self, ids: Iterable[int]) -> set[int]:
        """Return ``ids`` and the ids of all tokens that encoding needs to produce them.

        The additional tokens are added tokens, the intermediate results of merges, and the pieces with the lowest and
        the highest score, which determine the scores of unknown characters and user-defined pieces.
        """
        model = self._piece_model
        needed = {self._pieces[index] for index in ids}
        needed.update(token.content for token in self.added_tokens)
        needed |= model.extreme_pieces()
        if model.is_bpe:
            needed.update(*(model.intermediate_pieces(piece) for piece in tuple(needed)))
        return {*ids, *(self._ids[piece] for piece in needed if piece in self._ids)}

    def restrict_vocabulary(self, ids: Sequence[int]) -> SentencePieceTokenizer:
        """Return a tokenizer with only these ids; see :meth:`TextTokenizer.restrict_vocabulary`."""
        dropped = self._ids.keys() - {self._pieces[index] for index in ids}
        pieces = [self._pieces[index] for index in ids]
        reserved = [new for new, old in enumerate(ids) if old in self.reserved_ids]
        model = self._piece_model.without(dropped)
        return SentencePieceTokenizer(model, pieces, reserved, "the smaller vocabulary", self.added_tokens)

    def _fields(self) -> Mapping[str, Any]:
        model = hashlib.sha256(self.model_proto).hexdigest()
        fields = {"model": model, "reserved": sorted(self.reserved_ids), "pieces": self._pieces}
        return fields | ({"added_tokens": list(map(asdict, self.added_tokens))} if self.added_tokens else {})


def sentencepiece_pieces(model_proto: bytes, origin: str) -> list[str]:
    """Return the pieces of a SentencePiece model in the order of its own ids."""
    processor = _processor(model_proto, origin)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def sentencepiece_ids(model_proto: bytes, origin: str, texts: list[str]) -> list[list[int]]:
    """Return the model's own ids of each text. Texts may contain special pieces."""
    ids: list[list[int]] = _processor(model_proto, origin).encode(texts)
    return ids


def _processor(model: bytes, origin: str) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise MissingPackageError(f"{origin}: its tokenizer", "sentencepiece") from None
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise BundleError(f"{origin}: not a SentencePiece model, or a damaged one; copy or download it again") from None
    return processor
