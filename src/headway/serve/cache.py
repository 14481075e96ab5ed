"""A least-recently-used (LRU) cache for results of model calls."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


class ResultCache:
    """An LRU cache of results, bounded by their pickled size.

    Args:
        max_bytes: Maximum size of the stored results. 0 disables the cache.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._results: OrderedDict[bytes, bytes] = OrderedDict()
        self.num_bytes = 0
        self.num_hits = 0

    @property
    def is_enabled(self) -> bool:
        """Whether the cache stores results."""
        return self._max_bytes > 0

    def keys(self, inputs: Sequence[Any], *shared: Any) -> list[bytes]:
        """Return the cache key of each input.

        The keys also depend on ``shared``, the values that all inputs have in common. If the cache is disabled, all
        keys are empty.
        """
        if not self.is_enabled:
            return [b""] * len(inputs)
        beginning = hashlib.sha256(pickle.dumps(shared)).digest()
        return [hashlib.sha256(beginning + pickle.dumps(item)).digest() for item in inputs]

    def get(self, key: bytes) -> Any | None:
        """Return the result stored for a key, or None."""
        pickled = self._results.get(key)
        if pickled is None:
            return None
        self._results.move_to_end(key)
        self.num_hits += 1
        return pickle.loads(pickled)  # a copy that the caller may modify

    def put(self, key: bytes, result: Any) -> None:
        """Store a result, unless it is larger than the whole cache."""
        if not self.is_enabled:
            return
        data = pickle.dumps(result)
        self.num_bytes -= len(self._results.pop(key, b""))
        if len(data) > self._max_bytes:
            return
        self._results[key] = data
        self.num_bytes += len(data)
        while self.num_bytes > self._max_bytes:
            _, oldest = self._results.popitem(last=False)
            self.num_bytes -= len(oldest)
