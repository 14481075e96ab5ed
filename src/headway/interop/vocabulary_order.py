"""Reorder the vocabulary of another toolkit to Headway's special ids.

Every Headway model has the same special ids: 0 padding, 1 begin, 2 end, 3 unknown. Other vocabularies have them
elsewhere and are therefore reordered on import:

    Headway id            0     1      2    3        4...
    foreign token         pad   start  end  unknown  all others, in their own order

In many families decoding starts from the padding token (Marian) or from the end symbol (families trained with fairseq).
That row is then duplicated: in Headway nothing attends to padding, while the begin symbol is an ordinary token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headway.errors import BundleError


@dataclass(frozen=True)
class VocabularyOrder:
    """The mapping of one vocabulary, in both directions.

    ``order[i]`` is the foreign id of Headway's id i, so ``table[list(order)]`` is in Headway's order.
    """

    order: tuple[int, ...]

    @classmethod
    def of(cls, size: int, *, pad: int, start: int, end: int, unknown: int) -> VocabularyOrder:
        """Return the order that puts the foreign ids ``pad``, ``start``, ``end`` and ``unknown`` first.

        ``start`` may equal ``pad`` or ``end``; the other three must differ.

        Raises:
            BundleError: An id is not in the vocabulary, or two that must differ are equal.
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
        """Headway's id of each foreign id. A duplicated foreign id maps to padding or end, not to the start of
        decoding.
        """
        ours = {old: new for new, old in enumerate(self.order)}
        return ours | {self.order[new]: new for new in (0, 2)}

    def to_headway_ids(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Convert foreign ids to Headway's; :class:`BundleError` if the vocabulary does not contain one."""
        try:
            return tuple(self.new_ids[old] for old in ids)
        except KeyError as error:
            raise BundleError(
                f"token id {error} is not in the vocabulary, whose ids are 0 to {max(self.order)}"
            ) from None
