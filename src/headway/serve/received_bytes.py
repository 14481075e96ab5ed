"""Bound the total size of the requests that have not been answered yet.

A body whose length the client announces counts in full from its start: otherwise, two large uploads that do not fit
together would both be aborted midway.

The bound is shared by dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
packet switches", 1998): the requests of a sender may use as much as they leave for others. A single sender gets at most
half of the bound, a second sender half of the rest, and so on, so that no sender can block the others. A sender is
identified by its key or, while the key of a request is not known, by its address.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from headway.serve.config import LimitsConfig
from headway.serve.errors import OverloadedError

_FREE = 8192  # number of bytes of each request that do not count, so that short requests are never refused
_UNKNOWN_SHARE = 1 / 8  # share of the bound for requests whose key is not known yet
_RETRY_S = 1
_MEGABYTE = 1_000_000
_IPV6_NETWORK_BITS = 64  # network prefix length of a single IPv6 host


class ReceivedBytes:
    """Counts the bytes of all requests that have not been answered yet.

    Args:
        limits: Returns the current limits.
    """

    def __init__(self, limits: Callable[[], LimitsConfig]) -> None:
        self._limits = limits
        self.num_bytes = 0
        self.num_unknown_bytes = 0
        self._by_sender = Counter[str]()

    @contextmanager
    def track_request(self, sender: str, *, is_known: bool) -> Iterator[ReceivedRequest]:
        """Context manager that yields the byte counter of a request, and releases its bytes at the end.

        Args:
            sender: The sender's key or address.
            is_known: Whether the request has a valid key, or the service has no keys.
        """
        request = ReceivedRequest(self, sender, is_known=is_known)
        try:
            yield request
        finally:
            request.release()

    def check(self, num_bytes: int, num_counted: int, sender: str, *, is_known: bool) -> None:
        """Check that there is room for more bytes of a request, ``num_counted`` bytes of which are already counted.

        If there is only one request with a known key, it is accepted regardless of its size. The same applies to a
        single request without a known key.

        Raises:
            OverloadedError: All requests together would exceed the bound, or the sender's requests would exceed the
                sender's share.
        """
        bound = self._limits().receiving_mb * _MEGABYTE
        left = bound - self.num_bytes
        if is_known:
            is_only = self.num_bytes - self.num_unknown_bytes == num_counted
        else:
            left = min(left, bound * _UNKNOWN_SHARE - self.num_unknown_bytes)
            is_only = self.num_unknown_bytes == num_counted
        if not is_only and self._by_sender[sender] + num_bytes > left - num_bytes:
            raise OverloadedError(_RETRY_S)

    def count(self, num_bytes: int, sender: str, *, is_known: bool) -> None:
        """Add bytes of a request to the counts. A negative number undoes an earlier count."""
        self.num_bytes += num_bytes
        if not is_known:
            self.num_unknown_bytes += num_bytes
        self._by_sender[sender] += num_bytes
        if not self._by_sender[sender]:
            del self._by_sender[sender]


class ReceivedRequest:
    """Counts the bytes of a request: those that have arrived or, if it is larger, the length announced by the client.

    Attributes:
        sender: Identifies the sender of the request.
    """

    def __init__(self, received: ReceivedBytes, sender: str, *, is_known: bool) -> None:
        self._received, self.sender, self._is_known = received, sender, is_known
        self._size = self._announced = self._counted = 0

    def announce(self, num_bytes: int) -> None:
        """Count the bytes that a client has announced, so that a request is refused at its start if at all.

        Raises:
            OverloadedError: There is no room for these bytes.
        """
        self._announced = num_bytes
        self.add(0)

    def add(self, num_bytes: int) -> None:
        """Count bytes that have arrived. Raises :class:`OverloadedError` if there is no room for them."""
        self._size += num_bytes
        new = max(0, max(self._size, self._announced) - _FREE) - self._counted
        if new > 0:
            self._received.check(new, self._counted, self.sender, is_known=self._is_known)
            self._received.count(new, self.sender, is_known=self._is_known)
            self._counted += new

    def identify(self, sender: str) -> None:
        """Record the sender of the request after its key has been checked."""
        self._received.count(-self._counted, self.sender, is_known=self._is_known)
        self.sender, self._is_known = sender, True
        self._received.count(self._counted, self.sender, is_known=True)

    def release(self) -> None:
        """Stop counting the bytes of the request."""
        self._received.count(-self._counted, self.sender, is_known=self._is_known)
        self._size = self._announced = self._counted = 0


@lru_cache(maxsize=1024)
def sender_id(address: str | None) -> str:
    """Return the identifier of the sender at an address: the address itself or, for IPv6, its network.

    An address of None means the peer of a Unix socket.
    """
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return f"address {address}"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return f"network {int(parsed) >> (128 - _IPV6_NETWORK_BITS)}"
        parsed = parsed.ipv4_mapped
    return f"address {parsed}"
