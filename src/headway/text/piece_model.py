"""Read the file of a SentencePiece model, and remove pieces from it, which the package `sentencepiece` cannot do.

The file is a Protocol Buffers message (``sentencepiece_model.proto``):

    ModelProto      1 pieces (repeated), 2 trainer_spec, ...
    SentencePiece   1 piece (text), 2 score (float), 3 type: 1 normal (default), 2 unknown, 3 control, 4 user-defined,
                    5 unused, 6 byte
    TrainerSpec     3 model_type: 1 unigram (default), 2 bpe, 3 word, 4 char
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set
from dataclasses import dataclass

from headway.errors import BundleError
from headway.text.merge_closure import symbols_of_merges

_PIECES, _TRAINER_SPEC = 1, 2  # fields of ModelProto
_TEXT, _SCORE, _TYPE = 1, 2, 3  # fields of SentencePiece
_MODEL_TYPE = 3  # field of TrainerSpec
_NORMAL = 1  # a type of piece
_BPE = 2  # a type of model


@dataclass(frozen=True)
class _Field:
    """A field of a message: field number, value (bytes or an integer), and encoded bytes."""

    number: int
    value: bytes | int
    raw: bytes


class PieceModel:
    """The pieces of a SentencePiece model.

    Args:
        model_proto: Content of a ``.spm`` or ``.model`` file that `sentencepiece` can load.
    """

    def __init__(self, model_proto: bytes) -> None:
        self._fields = list(_fields(model_proto))
        self._scores: dict[str, float] = {}  # scores of normal pieces
        self.is_bpe = False
        for field in self._fields:
            if field.number == _PIECES:
                text, score, kind = _piece(field)
                if kind == _NORMAL:
                    self._scores[text] = score
            elif field.number == _TRAINER_SPEC:
                values = {part.number: part.value for part in _fields(_content(field))}
                self.is_bpe = values.get(_MODEL_TYPE) == _BPE

    def extreme_pieces(self) -> set[str]:
        """Return the normal pieces with the lowest and the highest score."""
        if not self._scores:
            return set()
        return {choose(self._scores, key=self._scores.__getitem__) for choose in (min, max)}

    def intermediate_pieces(self, piece: str) -> list[str]:
        """Return the pieces that merges produce on the way to a piece. Pairs with higher scores are merged first."""

        def rank(left: str, right: str) -> float | None:
            score = self._scores.get(left + right)
            return None if score is None else -score

        return symbols_of_merges(piece, rank)

    def without(self, dropped: Set[str]) -> bytes:
        """Return the content of the file without these normal pieces. All other pieces keep their order and scores."""

        def is_kept(field: _Field) -> bool:
            if field.number != _PIECES:
                return True
            text, _, kind = _piece(field)
            return kind != _NORMAL or text not in dropped

        return b"".join(field.raw for field in self._fields if is_kept(field))


def _piece(field: _Field) -> tuple[str, float, int]:
    """Return the text, score and type of a piece."""
    values = {part.number: part.value for part in _fields(_content(field))}
    text, score, kind = values.get(_TEXT, b""), values.get(_SCORE, bytes(4)), values.get(_TYPE, _NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise _damaged()
    return text.decode("utf-8", errors="replace"), float(struct.unpack("<f", score)[0]), kind


def _content(field: _Field) -> bytes:
    if not isinstance(field.value, bytes):
        raise _damaged()
    return field.value


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields of a message. The values of fixed 32-bit and 64-bit fields are bytes, varints are integers."""
    position = 0
    while position < len(message):
        start = position
        key, position = _varint(message, position)
        value: bytes | int
        match key & 7:
            case 0:
                value, position = _varint(message, position)
            case 1 | 5 as wire:
                size = 8 if wire == 1 else 4
                value, position = message[position : position + size], position + size
            case 2:
                size, position = _varint(message, position)
                value, position = message[position : position + size], position + size
            case _:
                raise _damaged()
        if position > len(message):
            raise _damaged()
        yield _Field(key >> 3, value, message[start:position])


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position``, and the position after it."""
    number = shift = 0
    while position < len(message):
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return number, position
    raise _damaged()


def _damaged() -> BundleError:
    return BundleError("the tokenizer's SentencePiece model is damaged; copy or import the folder again")
