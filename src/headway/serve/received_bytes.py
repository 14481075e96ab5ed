"""A bound for everything that clients have sent of their requests, before these are answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.serve.config import LimitsConfig
from headway.serve.errors import OverloadedError

_FREE = 8192  # bytes of each request that do not count, so that short requests are never refused
_UNKNOWN_SHARE = 1 / 8  # share of the limit for requests whose key is not known yet
_RETRY_S = 1
_MEGABYTE = 1_000_000


class ReceivedBytes:
    """The bytes of all requests that are not answered yet.

    Args:
        limits: Returns the present limits.
    """

    def __init__(self, limits: Callable[[], LimitsConfig]) -> None:
        self._limits = limits
        self.num_bytes = 0
        self.num_unknown_bytes = 0

    @contextmanager
    def request(self, *, is_known: bool) -> Iterator[ReceivedRequest]:
        """Yield a counter of the bytes of a request, which are counted until the context ends.

        Args:
            is_known: Whether the request has a valid key, or needs none because the service has no keys.
        """
        request = ReceivedRequest(self, is_known=is_known)
        try:
            yield request
        finally:
            request.release()

    def count(self, num_bytes: int, *, is_known: bool, is_first: bool) -> None:
        """Count bytes of a request. A single request is never refused, however large it is.

        Raises:
            OverloadedError: All requests together would exceed the bound.
        """
        bound = self._limits().receiving_mb * _MEGABYTE
        if not is_first:
            is_full = self.num_bytes + num_bytes > bound
            if is_full or (not is_known and self.num_unknown_bytes + num_bytes > bound * _UNKNOWN_SHARE):
                raise OverloadedError(_RETRY_S)
        self.num_bytes += num_bytes
        if not is_known:
            self.num_unknown_bytes += num_bytes


class ReceivedRequest:
    """The bytes of a request that count."""

    def __init__(self, received: ReceivedBytes, *, is_known: bool) -> None:
        self._received, self._is_known = received, is_known
        self._size = self._counted = 0

    def add(self, num_bytes: int) -> None:
        """Count bytes that have arrived. Raises :class:`OverloadedError` if all requests have too many."""
        self._size += num_bytes
        new = max(0, self._size - _FREE) - self._counted
        if new > 0:
            others = self._received.num_bytes if self._is_known else self._received.num_unknown_bytes
            self._received.count(new, is_known=self._is_known, is_first=others == self._counted)
            self._counted += new

    def identify(self) -> None:
        """Note that the key of the request is known now."""
        if not self._is_known:
            self._is_known = True
            self._received.num_unknown_bytes -= self._counted

    def release(self) -> None:
        """Stop counting the bytes of the request."""
        self._received.num_bytes -= self._counted
        if not self._is_known:
            self._received.num_unknown_bytes -= self._counted
        self._size = self._counted = 0
