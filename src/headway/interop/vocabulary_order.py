"""How ids of another toolkit's vocabulary become Headway's.

Headway's special ids are the same in every model: 0 pads, decoding begins with 1 and ends with 2, 3 stands for what is
unknown. Foreign vocabularies have theirs elsewhere, so an imported one is put in another order:

    ours                  0    1      2    3        4...
    the foreign tokens    pad  start  end  unknown  all others, in their own order

In many families decoding starts from the padding token (Marian) or from the end symbol (the families that fairseq
trained): that row is then there twice, because to Headway padding is what nobody may attend to, and a begin symbol is a
token like others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headway.errors import BundleError

__all__ = ["VocabularyOrder"]


@dataclass(frozen=True)
class VocabularyOrder:
    """One side's ids, two-way. ``order`` has the old id of each of our ids: ``table[list(order)]`` is in our order."""

    order: tuple[int, ...]

    @classmethod
    def of(cls, size: int, *, pad: int, start: int, end: int, unknown: int) -> VocabularyOrder:
        """The order that puts the old ids ``pad``, ``start``, ``end``, ``unknown`` first; :class:`BundleError` where
        they do not make sense.

        ``start`` may be the same as ``pad`` or ``end``; the other three differ.
        """
        special = {"pad": pad, "start": start, "end": end, "unknown": unknown}
        for name, old in special.items():
            if not 0 <= old < size:
                raise BundleError(f"the {name} token's id {old} is not in the vocabulary, which has {size} tokens")
        for first, second in (("pad", "end"), ("pad", "unknown"), ("end", "unknown"), ("start", "unknown")):
            if special[first] == special[second]:
                raise BundleError(
                    f"the {first} and the {second} token are one (id {special[first]}); Headway needs two: padding is "
                    "never attended to, the end symbol ends a sentence, and neither stands for unknown text"
                )
        rest = (old for old in range(size) if old not in special.values())
        return cls((pad, start, end, unknown, *rest))

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def new_ids(self) -> dict[int, int]:
        """Our id of each old id. An old id that is there twice is the pad or end token, not the start of decoding."""
        ours = {old: new for new, old in enumerate(self.order)}
        return ours | {self.order[new]: new for new in (0, 2)}

    def to_headway_ids(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Our ids of foreign ones; :class:`BundleError` where the vocabulary has no such id."""
        try:
            return tuple(self.new_ids[old] for old in ids)
        except KeyError as error:
            raise BundleError(
                f"token id {error} is not in the vocabulary, whose ids are 0 to {max(self.order)}"
            ) from None

    def to_foreign_ids(self, ids: Iterable[int]) -> tuple[int, ...]:
        """The foreign ids of ours."""
        return tuple(self.order[new] for new in ids)
