"""Limits for clients: API keys with rates and quotas, and the sizes of requests."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from headway.serve.config import KeyConfig, LimitsConfig
from headway.serve.cost import Cost, exceeded_limit_message
from headway.serve.errors import BadKeyError, QuotaExceededError, RateExceededError, TooLargeError
from headway.serve.usage import Usage

_PRIORITIES = {"interactive": 0, "bulk": 1}
_BACKGROUND = max(_PRIORITIES.values()) + 1
_MINUTE_S = 60.0


class PassedLimits(Enum):
    """The limits that a call has already passed, as part of a request or of a background job."""

    NONE = auto()  # no limits have been checked
    CHECKED = auto()  # the queue has room for the whole request, but the call must still wait in the queue
    ADMITTED = auto()  # the request has passed all limits and left the queue
    BACKGROUND = auto()  # the call belongs to a background job that has passed all limits


@dataclass
class Client:
    """The sender of a request, identified by an API key.

    Attributes:
        name: Name of the key, or "anyone" if the service has no keys.
        key: Configuration of the key, or None if the service has no keys.
        passed_limits: The limits that the call has already passed.
    """

    name: str
    key: KeyConfig | None = None
    passed_limits: PassedLimits = PassedLimits.NONE

    @property
    def priority(self) -> int:
        """Priority of the client's work; lower numbers come first."""
        if self.passed_limits is PassedLimits.BACKGROUND:
            return _BACKGROUND
        return 0 if self.key is None else _PRIORITIES[self.key.priority]

    def for_background_job(self) -> Client:
        """Return a copy of the client for the calls of a background job, which has passed all limits."""
        return dataclasses.replace(self, passed_limits=PassedLimits.BACKGROUND)


class Clients:
    """The API keys of a service, with their rates and quotas.

    Args:
        keys: Returns the keys in the current configuration.
        usage: Counts the characters of each key.
    """

    def __init__(self, keys: Callable[[], Sequence[KeyConfig]], usage: Usage) -> None:
        self._keys, self._usage = keys, usage
        self._request_times: dict[str, list[float]] = {}  # times of the requests in the last minute, by key name

    def authenticate(self, key: str | None) -> Client:
        """Return the client with this key, and count a request against its rate limit.

        Raises:
            BadKeyError: The service has keys, and this is not one of them.
            RateExceededError: The key has sent too many requests.
        """
        keys = self._keys()
        if not keys:
            return Client("anyone")
        config = self._config(key)
        if config is None:
            raise BadKeyError
        if config.requests_per_minute is not None:
            now = time.monotonic()
            recent = [start for start in self._request_times.get(config.name, ()) if start > now - _MINUTE_S]
            if len(recent) >= config.requests_per_minute:
                raise RateExceededError(max(1, math.ceil(recent[0] + _MINUTE_S - now)))
            self._request_times[config.name] = [*recent, now]
        return Client(config.name, config)

    def has_key(self, key: str) -> bool:
        """Return whether this is a valid key, without counting a request."""
        return self._config(key) is not None

    def _config(self, key: str | None) -> KeyConfig | None:
        if not key:  # an empty key is never valid
            return None
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        matching = [config for config in self._keys() if hmac.compare_digest(config.sha256, digest)]
        return matching[0] if matching else None

    def characters_used(self, client: Client) -> int:
        """Return the number of characters that a client has sent this month."""
        return self._usage.characters(client.name)

    def check_quota(self, client: Client, characters: int) -> None:
        """Raise :class:`QuotaExceededError` if ``characters`` more would exceed a client's monthly quota."""
        quota = None if client.key is None else client.key.characters_per_month
        if quota is not None and self.characters_used(client) + characters > quota:
            raise QuotaExceededError

    def count_characters(self, client: Client, characters: int) -> None:
        """Add characters to a client's usage. A negative number undoes an earlier count."""
        self._usage.add(client.name, characters)


class RequestSizes:
    """Checks the sizes of requests against the limits. All checks raise :class:`TooLargeError`.

    Args:
        limits: Returns the limits in the current configuration.
    """

    def __init__(self, limits: Callable[[], LimitsConfig]) -> None:
        self._limits = limits

    def check_num_texts(self, texts: Sequence[Any]) -> None:
        """Check the number of texts in a request, before anything is computed for each text."""
        self.check_counts(texts=len(texts))

    def check_texts(self, texts: Sequence[str]) -> int:
        """Check the texts in a request, and return their total number of characters."""
        characters = sum(map(len, texts))
        self.check_counts(texts=len(texts), characters=characters)
        return characters

    def check_counts(self, *, texts: int = 0, characters: int = 0) -> None:
        """Check the numbers of texts and characters in a request.

        A text that is processed several times counts several times.
        """
        limits = self._limits()
        if texts > limits.texts:
            raise TooLargeError(f"{texts:,} texts in one request; at most {limits.texts:,} are accepted")
        if characters > limits.characters:
            raise TooLargeError(f"{characters:,} characters in one request; at most {limits.characters:,} are accepted")

    def check_cost(self, cost: Cost) -> None:
        """Check the cost of a request against the limits."""
        if (problem := exceeded_limit_message(cost, self._limits())) is not None:
            raise TooLargeError(problem)

    def check_options(self, cost: Cost) -> None:
        """Check the cost of the options of a request or a job, regardless of the number of texts."""
        self.check_cost(dataclasses.replace(cost, num_texts=0, num_characters=0, work_tokens=0, result_tokens=0))

    def check_job(self, texts: Sequence[str], characters: int) -> None:
        """Check the texts of a bulk job, which have ``characters`` characters in total."""
        self.check_job_size(len(texts), characters, max(map(len, texts), default=0))

    def check_job_size(self, num_texts: int, characters: int = 0, longest: int = 0) -> None:
        """Check the size of a job. ``longest`` is the number of characters in its longest text."""
        limits = self._limits()
        if num_texts > limits.job_texts:
            raise TooLargeError(f"{num_texts:,} texts in one job; at most {limits.job_texts:,} are accepted")
        if characters > limits.job_characters:
            raise TooLargeError(f"{characters:,} characters in one job; at most {limits.job_characters:,} are accepted")
        if longest > limits.characters:
            raise TooLargeError(f"a text has {longest:,} characters; at most {limits.characters:,} are accepted")
