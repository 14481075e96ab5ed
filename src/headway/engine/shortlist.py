"""Lexical shortlists of the tokens that a sentence's translation may contain (Jean et al. 2015, section 3.3).

The output projection takes a large part of the time of a decoding step, although most of its rows belong to tokens that
do not occur in the translation. A shortlist contains tokens that any translation may need, and the probable
translations of each source token. The tokens of a translation are chosen from the union of both.

Other toolkits use the union over a batch, so that a sentence's allowed tokens depend on the other sentences. Here,
every sentence has its own list, and the output weights of its list are gathered when the sentence enters the batch.
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
    """The target tokens that a sentence's translation may contain.

    Attributes:
        always_allowed: Tokens that every translation may contain, including EOS.
        translations: Possible translations of each token in the source vocabulary, padded with zeros.
        vocabulary_fingerprints: Fingerprints of the two vocabularies that the shortlist was made for, in one string.

    Raises:
        ConfigError: An array has the wrong type or shape, or ``always_allowed`` does not contain EOS.
    """

    always_allowed: Int32[Array, " A"]
    translations: Int32[Array, "F C"]
    vocabulary_fingerprints: str = ""

    def __post_init__(self) -> None:
        for array, dimensions in ((self.always_allowed, 1), (self.translations, 2)):
            if array.dtype != np.int32 or array.ndim != dimensions or array.min(initial=0) < 0:
                raise ConfigError(
                    f"a shortlist array is {array.dtype} {array.shape}; expected non-negative 32-bit token ids"
                )
        if EOS not in self.always_allowed:
            raise ConfigError("a shortlist must contain the end symbol; otherwise, no translation could end")

    def check_vocabulary_sizes(self, source_size: int, target_size: int) -> None:
        """Raise :class:`ConfigError` if a model with vocabularies of these sizes cannot use the shortlist."""
        largest = max(int(self.always_allowed.max()), int(self.translations.max(initial=0)))
        if len(self.translations) != source_size or largest >= target_size:
            raise ConfigError(
                f"the shortlist is for {len(self.translations):,} source tokens and has target token {largest:,}, but "
                f"the model has {source_size:,} source and {target_size:,} target tokens"
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
        vocabulary_fingerprints: str = "",
        targets_per_source: int = 50,
        num_always: int = 100,
    ) -> Shortlist:
        """Learn a shortlist from parallel text (:func:`~headway.text.lexicon.translation_table`).

        Args:
            sources: Token ids of the source sentences, without special tokens.
            targets: Token ids of the target sentences, without special tokens.
            source_size: Size of the source vocabulary.
            target_size: Size of the target vocabulary.
            joint: Whether source and target share a vocabulary. If True, each source token may also be copied, as in
                names and numbers.
            vocabulary_fingerprints: Fingerprints of the two vocabularies, in one string.
            targets_per_source: Number of translations to store for each source token.
            num_always: Number of most frequent target tokens, which every translation may contain.

        Raises:
            ConfigError: The sources or the targets are empty.
        """
        if not any(sources) or not any(targets):
            raise ConfigError("cannot learn a shortlist: there is no parallel text")
        table = translation_table(sources, targets, source_size, target_size, targets_per_source)
        if joint:
            table = np.concatenate([table, np.arange(source_size, dtype=np.int32)[:, None]], axis=1)
        frequent = Counter(token for target in targets for token in target).most_common(num_always)
        return cls(np.array(sorted({EOS, *dict(frequent)}), dtype=np.int32), table, vocabulary_fingerprints)

    def allowed_tokens(self, sources: Sequence[Sequence[int]]) -> Int[Tensor, "B U"]:
        """Return each source's shortlist, sorted and padded with 0 to the length of the longest shortlist."""
        listed = [np.union1d(self.always_allowed, self.translations[list(source)]) for source in sources]
        return pad_sequence([torch.from_numpy(row[row != PAD].astype(np.int64)) for row in listed], batch_first=True)


class ShortlistWeights:
    """The rows of the output projection for the shortlists of B sequences, in tensors (P, U, ...) with P slots.

    As in :class:`~headway.nn.cache.KVCache`, sequences are removed without copying the others: sequence b is stored in
    slot ``slots[b]``.
    """

    def __init__(self, tensors: list[Shaped[Tensor, "P U ..."]]) -> None:
        self.tensors = tensors
        self._number_slots()

    def _number_slots(self) -> None:
        self.slots: Int[Tensor, " B"] = torch.arange(len(self.tensors[0]), device=self.tensors[0].device)
        self._in_order = True

    def select(self, sequences: Int[Tensor, " B2"]) -> None:
        """Keep only the given sequences."""
        self.slots, self._in_order = self.slots[sequences], False

    def compact(self) -> None:
        """Move each sequence b to slot b, and drop the unused slots."""
        if self._in_order:
            return
        count = len(self.slots)
        moved = (self.slots != torch.arange(count, device=self.slots.device)).nonzero().squeeze(1)
        for tensor in self.tensors:
            tensor[moved] = tensor[self.slots[moved]]
        self.tensors = [tensor[:count] for tensor in self.tensors]
        self._number_slots()

    def append(self, other: ShortlistWeights) -> None:
        """Append the sequences of ``other``. Shorter shortlists are padded with zeros."""
        self.compact()
        longest = max(weights.tensors[0].size(1) for weights in (self, other))

        def padded(tensor: Tensor) -> Tensor:
            return F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, longest - tensor.size(1)))

        pairs = zip(self.tensors, other.tensors, strict=True)
        self.tensors = [torch.cat([padded(tensor), padded(new)]) for tensor, new in pairs]
        self._number_slots()
