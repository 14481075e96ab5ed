"""Reorder another toolkit's vocabulary so that its special tokens have Headway's ids.

Every Headway model has the same special ids: 0 padding, 1 begin, 2 end, 3 unknown. In other toolkits, special tokens
have different ids, so vocabularies are reordered on import:

    Headway id            0     1      2    3        4...
    foreign token         pad   start  end  unknown  all others, in their original order

In many families, decoding starts from the padding token (Marian) or from the end symbol (families trained with
fairseq). The row of this token is then duplicated, because Headway's begin symbol has its own id and, unlike padding,
can be attended to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headway.errors import BundleError
from headway.text.base import BOS, EOS, NUM_SPECIAL, PAD, UNK


@dataclass(frozen=True)
class VocabularyOrder:
    """The mapping between the ids of a foreign vocabulary and Headway's ids, in both directions.

    ``order[i]`` is the foreign id of Headway's id i, so the rows of ``table[list(order)]`` are in Headway's order.
    """

    order: tuple[int, ...]

    @classmethod
    def from_special_ids(cls, size: int, *, pad: int, start: int, end: int, unknown: int) -> VocabularyOrder:
        """Return the order that puts the foreign ids ``pad``, ``start``, ``end`` and ``unknown`` first.

        ``start`` may equal ``pad`` or ``end``. Otherwise, the four ids must differ.

        Raises:
            BundleError: An id is not in the vocabulary, or two ids that must differ are equal.
        """
        special = {"pad": pad, "start": start, "end": end, "unknown": unknown}
        for name, old in special.items():
            if not 0 <= old < size:
                raise BundleError(f"the {name} token's id {old} is not in the vocabulary, which has {size} tokens")
        for first, second in (("pad", "end"), ("pad", "unknown"), ("end", "unknown"), ("start", "unknown")):
            if special[first] == special[second]:
                raise BundleError(
                    f"the {first} and {second} tokens are the same (id {special[first]}), but Headway needs two: "
                    "padding is masked out of attention, the end symbol ends a sentence, and neither may represent "
                    "unknown text"
                )
        rest = (old for old in range(size) if old not in special.values())
        return cls((pad, start, end, unknown, *rest))

    @classmethod
    def for_language_model(
        cls, size: int, *, pad: int | None, start: int | None, end: int, unknown: int | None
    ) -> VocabularyOrder:
        """Return the order for a language model, which may have no padding, begin or unknown token.

        A token that is missing or serves two purposes is replaced by a duplicate of the row of ``end``. The duplicate's
        id never occurs in text (:attr:`duplicates`).

        Raises:
            BundleError: An id is not in the vocabulary.
        """
        for name, old in {"pad": pad, "start": start, "end": end, "unknown": unknown}.items():
            if old is not None and not 0 <= old < size:
                raise BundleError(f"the {name} token's id {old} is not in the vocabulary, which has {size} tokens")
        first = start if start is not None else end
        unknown = end if unknown in (None, first) else unknown
        pad = end if pad in (None, first, unknown) else pad
        special = (pad, first, end, unknown)
        return cls((*special, *(old for old in range(size) if old not in special)))

    @classmethod
    def with_duplicates(
        cls, size: int, *, pad: int | None, start: int | None, end: int | None, unknown: int | None
    ) -> VocabularyOrder:
        """Return the order for a vocabulary in which any special token may be missing or equal to another.

        The row of a missing token duplicates the row of ``end`` or of a text token (:attr:`duplicates`).

        Raises:
            BundleError: An id is not in the vocabulary, or the vocabulary is empty.
        """
        present = {"pad": pad, "start": start, "end": end, "unknown": unknown}
        for name, old in present.items():
            if old is not None and not 0 <= old < size:
                raise BundleError(f"the {name} token's id {old} is not in the vocabulary, which has {size} tokens")
        if size < 1:
            raise BundleError("the vocabulary is empty")
        rest = [old for old in range(size) if old not in present.values()]
        filler = end if end is not None else next(iter(rest), 0)
        return cls((*(filler if old is None else old for old in present.values()), *rest))

    @property
    def duplicates(self) -> tuple[int, ...]:
        """The special ids whose rows are duplicates of another id's row."""
        return tuple(new for new in range(NUM_SPECIAL) if self.headway_ids[self.order[new]] != new)

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def headway_ids(self) -> dict[int, int]:
        """The Headway id of each foreign id. If several Headway ids have the same row, a text token is preferred, then
        the end symbol, the unknown token, padding, and the begin symbol.
        """
        ascending_precedence = (BOS, PAD, UNK, EOS, *range(NUM_SPECIAL, len(self.order)))
        return {self.order[new]: new for new in ascending_precedence}

    def to_headway_ids(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Convert foreign ids to Headway's ids. Raise :class:`BundleError` if an id is not in the vocabulary."""
        try:
            return tuple(self.headway_ids[old] for old in ids)
        except KeyError as error:
            raise BundleError(
                f"token id {error} is not in the vocabulary, whose ids are 0 to {max(self.order)}"
            ) from None
