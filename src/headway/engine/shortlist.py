"""The tokens that the translation of a sentence may use: a lexical shortlist (Jean et al. 2015, section 3.3).

The output projection takes a large part of a decoding step, and most of its rows are for tokens that the translation of
the sentence does not contain. A shortlist has tokens that any sentence may need, and for each source token its probable
translations. The translation of a sentence is chosen from the union of both.

Other toolkits take the union over a batch, so that the other sentences change what a sentence may become. Here every
sentence has its own list, and the output weights of its list are gathered when it enters the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int, Int32, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headway.errors import ConfigError
from headway.text.base import EOS, PAD
from headway.text.lexicon import translation_table

Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Shortlist:
    """The target tokens that a sentence may use.

    Attributes:
        always: Tokens that every sentence may use, including EOS.
        table: The translations of each token of the source vocabulary, padded with zeros.
        vocabularies: Identifies the vocabularies that the shortlist belongs to.

    Raises:
        ConfigError: The arrays have another form.
    """

    always: Int32[Array, " A"]
    table: Int32[Array, "F C"]
    vocabularies: str = ""

    def __post_init__(self) -> None:
        for array, dimensions in ((self.always, 1), (self.table, 2)):
            if array.dtype != np.int32 or array.ndim != dimensions or array.min(initial=0) < 0:
                raise ConfigError(f"a shortlist of {array.dtype} {array.shape}; expected 32-bit tokens from 0 on")
        if EOS not in self.always:
            raise ConfigError("a shortlist without the end symbol: no sentence could end")

    def check(self, source_size: int, target_size: int) -> None:
        """Raise :class:`ConfigError` if a model with vocabularies of these sizes cannot use the shortlist."""
        largest = max(int(self.always.max()), int(self.table.max(initial=0)))
        if len(self.table) != source_size or largest >= target_size:
            raise ConfigError(
                f"a shortlist of {len(self.table):,} source tokens, with target token {largest:,}, for a model of "
                f"{source_size:,} and {target_size:,} tokens"
            )

    @classmethod
    def learn(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        source_size: int,
        target_size: int,
        joint: bool,
        vocabularies: str = "",
        each: int = 50,
        always: int = 100,
    ) -> Shortlist:
        """Learn a shortlist from parallel text (:func:`~headway.text.lexicon.translation_table`).

        Args:
            sources: The source sides, as tokens without special tokens.
            targets: The target sides.
            source_size: The size of the source vocabulary.
            target_size: The size of the target vocabulary.
            joint: Whether the vocabulary is shared. Then each token may also become itself, as names and numbers do.
            vocabularies: Identifies the vocabularies.
            each: The number of translations of each source token.
            always: The number of tokens that every sentence may use: the most frequent target tokens.

        Raises:
            ConfigError: There is no text.
        """
        if not any(sources) or not any(targets):
            raise ConfigError("a shortlist is learned from parallel text; there is none")
        table = translation_table(sources, targets, source_size, target_size, each)
        if joint:
            table = np.concatenate([table, np.arange(source_size, dtype=np.int32)[:, None]], axis=1)
        frequent = Counter(token for target in targets for token in target).most_common(always)
        return cls(np.array(sorted({EOS, *(token for token, _ in frequent)}), dtype=np.int32), table, vocabularies)

    def tokens(self, sources: Sequence[Sequence[int]]) -> Int[Tensor, "B U"]:
        """Return each source's list in order, padded with 0 to the longest."""
        listed = [np.union1d(self.always, self.table[list(source)]) for source in sources]
        return pad_sequence([torch.from_numpy(row[row != PAD].astype(np.int64)) for row in listed], batch_first=True)


class ListedWeights:
    """The rows of the output projection that the shortlists of B sequences need, in tensors (P, U, ...) with P slots.

    As in :class:`~headway.nn.cache.KVCache`, sequences leave without copying the others: sequence b has slot
    ``slots[b]``.
    """

    def __init__(self, tensors: list[Shaped[Tensor, "P U ..."]]) -> None:
        self.tensors = tensors
        self._number_slots()

    def _number_slots(self) -> None:
        self.slots: Int[Tensor, " B"] = torch.arange(len(self.tensors[0]), device=self.tensors[0].device)
        self._in_order = True

    def keep(self, sequences: Int[Tensor, " B2"]) -> None:
        """Keep only these sequences."""
        self.slots, self._in_order = self.slots[sequences], False

    def order(self) -> None:
        """Move sequence b to slot b, if it is in another slot."""
        if self._in_order:
            return
        count = len(self.slots)
        moved = (self.slots != torch.arange(count, device=self.slots.device)).nonzero().squeeze(1)
        for tensor in self.tensors:
            tensor[moved] = tensor[self.slots[moved]]
        self.tensors = [tensor[:count] for tensor in self.tensors]
        self._number_slots()

    def append(self, other: ListedWeights) -> None:
        """Append the sequences of ``other``; shorter lists are padded with zeros."""
        self.order()
        longest = max(each.tensors[0].size(1) for each in (self, other))

        def padded(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, longest - tensor.size(1)))

        pairs = zip(self.tensors, other.tensors, strict=True)
        self.tensors = [torch.cat([padded(own), padded(new)]) for own, new in pairs]
        self._number_slots()
