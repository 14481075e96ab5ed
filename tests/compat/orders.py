"""The batches of some epochs, as plain numbers: what :mod:`record` stores and :mod:`test_recorded` computes again.

The corpora are made by formulas, so that an order depends on nothing but the code that draws it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

from headway.data.batching import TokenDataset
from headway.data.blocks import BlockDataset, StreamDataset
from headway.data.masking import MaskedBlockDataset, Masking, MaskingConfig
from headway.data.store import SIDES, Chunk, FilterCounts, TokenStore, join_chunks
from headway.text.base import MASK
from headway.text.bpe_dropout import BPEDropoutEncoder
from headway.text.tokenizer import Tokenizer

SEED, EPOCHS = 5, range(3)
LIMITS = {"max_batch_tokens": 60, "pool_size": 40}
TEXTS = [f"low lower lowest new newer newest wide wider widest {number}" for number in range(40)]


def store(folder: Path, sizes: Sequence[int], *, segmentations: int = 1) -> TokenStore:
    """Write a store whose example i has the given number of tokens on the source side, and others on the target."""
    lengths = {
        "source": np.repeat(np.array(sizes, np.int64), segmentations),
        "target": np.repeat(np.array([1 + size * 5 % 7 for size in sizes], np.int64), segmentations),
    }
    tokens = {side: np.arange(lengths[side].sum()) % 20 + 7 for side in SIDES}
    counts = FilterCounts(len(sizes), 0, 0, 0)
    return join_chunks(folder, "key", segmentations, np.dtype(np.uint16), [Chunk(tokens, lengths, counts)])


def tokenizer() -> Tokenizer:
    """Return a small tokenizer, with a token for hidden tokens."""
    merges = [("l", "o"), ("lo", "w"), ("Ġ", "lo"), ("Ġlo", "w"), ("Ġ", "n"), ("Ġn", "e"), ("Ġne", "w"), ("e", "r")]
    merges += [("e", "s"), ("es", "t"), ("Ġ", "w"), ("Ġw", "i"), ("i", "d"), ("d", "e"), ("1", "2"), ("Ġ", "1")]
    return Tokenizer("bpe", [*sorted(ByteLevel.alphabet()), *map("".join, merges)], merges, tags=[MASK])


def observed_orders(**version: Any) -> dict[str, Any]:
    """Return the row numbers of every batch of some epochs of each kind of data set, and what is drawn in a batch.

    ``version`` is the argument ``order_version``, which the functions did not have when version 1 was recorded.
    """
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        stores = [store(folder / f"{count}", [1 + i * 7 % 13 for i in range(count)]) for count in (90, 50, 17)]
        sampled = [store(folder / "sampled", [1 + i * 3 % 11 for i in range(30)], segmentations=2)]
        found: dict[str, Any] = {
            "one": _epochs(TokenDataset(stores[:1]), version),
            "weights": _epochs(TokenDataset(stores, [2.5, 0.4, 1.0]), version),
            "temperature": _epochs(TokenDataset(stores, [1.0, 2.0, 1.0], 3.0), version),
            "segmentations": _epochs(TokenDataset(sampled), version),
            "blocks": _epochs(BlockDataset(stores, [2.5, 0.4, 1.0], block_length=11), version),
            "blocks-temperature": _epochs(BlockDataset(stores, None, 2.0, block_length=11, part=(0.0, 0.8)), version),
            "streams": _epochs(StreamDataset(stores, block_length=11), version),
        }
        for unit in ("tokens", "words", "spans"):
            masking = Masking(MaskingConfig.parse({"unit": unit, "fraction": 0.4}, "orders"), tokenizer())
            dataset = MaskedBlockDataset(stores, block_length=20, masking=masking, seed=SEED, **version)
            found[f"masked-{unit}"] = _epochs(dataset, version)
            plans = [dataset.plan_epoch(SEED, epoch, **LIMITS, **version) for epoch in EPOCHS]
            batches = [dataset.batch(plan[0]) for plan in (*plans, dataset.plan_sequential(60))]
            found[f"hidden-{unit}"] = [[batch.source.tolist(), batch.target.tolist()] for batch in batches]
        encoder = BPEDropoutEncoder(tokenizer(), 0.3, 3, SEED, **version)
        packed = encoder.encode(TEXTS[:6])
        found["bpe-dropout"] = [packed.ids.tolist(), packed.lengths.tolist()]
    return found


def _epochs(dataset: TokenDataset, version: dict[str, Any]) -> list[list[list[int]]]:
    plans = (dataset.plan_epoch(SEED, epoch, **LIMITS, **version) for epoch in EPOCHS)
    return [[rows.tolist() for rows in plan] for plan in plans]
