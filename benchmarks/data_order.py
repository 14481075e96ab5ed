"""Time and memory of planning an epoch, in both versions of the order of data (:mod:`headway.data.draws`).

    python benchmarks/data_order.py [MILLIONS OF PAIRS, default 4]

The versions take turns. The ratio of times is that of version 2 to version 1, within each turn; memory is the peak of
what NumPy allocates while an epoch is planned.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from typing import Any

import numpy as np

from headway.data.batching import TokenDataset

TURNS = 5


class Lengths(TokenDataset):
    """A data set with nothing but lengths."""

    def __init__(self, sizes: list[int], weights: list[float]) -> None:
        rng = np.random.default_rng(1)
        self._stores: Any = [range(size) for size in sizes]
        self._weights, self.num_segmentations = weights, 1
        self._starts = np.cumsum([0, *sizes])
        total = sum(sizes)
        self._lengths = {side: rng.lognormal(3, 0.6, total).astype(np.int32) + 1 for side in ("source", "target")}

    def lengths(self, side: str, segmentation: int) -> Any:
        """Return the length of each example."""
        return self._lengths[side]


def main() -> None:
    """Print one line for each data set."""
    pairs = int(float(sys.argv[1] if len(sys.argv) > 1 else 4) * 1e6)
    for name, sizes, weights in (
        ("one corpus", [pairs], [1.0]),
        ("three corpora, weights 1, 0.5 and 2.5", [pairs // 2, pairs // 4, pairs // 4], [1.0, 0.5, 2.5]),
    ):
        dataset = Lengths(sizes, weights)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        peaks = {}
        for turn in range(TURNS):
            for version in (1, 2):
                begin = time.perf_counter()
                dataset.plan_epoch(1, turn, max_batch_tokens=4096, pool_size=32768, order_version=version)
                seconds[version].append(time.perf_counter() - begin)
        for version in (1, 2):
            tracemalloc.start()
            dataset.plan_epoch(1, 0, max_batch_tokens=4096, pool_size=32768, order_version=version)
            peaks[version] = tracemalloc.get_traced_memory()[1] / sum(sizes)
            tracemalloc.stop()
        ratios = [two / one for one, two in zip(seconds[1], seconds[2], strict=True)]
        print(
            f"{name}, {pairs:,} pairs: {statistics.median(seconds[1]):.2f} and {statistics.median(seconds[2]):.2f} s, "
            f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"peak {peaks[1]:.1f} and {peaks[2]:.1f} bytes a pair"
        )


if __name__ == "__main__":
    main()
