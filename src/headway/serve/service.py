"""What the APIs call: texts in, results out. It knows keys, limits and languages, and nothing about HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headway.errors import HeadwayError
from headway.serve.admission import Admission, estimated_tokens
from headway.serve.config import KeyConfig, ServeConfig, model_name
from headway.serve.fleet import Fleet
from headway.serve.languages import DetectedLanguage, detect_language, find_language
from headway.serve.messages import ModelInfo
from headway.serve.worker import MAX_JOBS

_PRIORITIES = {"interactive": 0, "bulk": 1}
_MINUTE_S = 60.0


class BadKeyError(Exception):
    """The key is missing or wrong."""


class RateExceededError(Exception):
    """The key has sent too many requests. ``retry_after`` is in whole seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class QuotaExceededError(Exception):
    """The key's characters of this month are used up."""


class TooLargeError(Exception):
    """The request has more texts or characters than the service accepts. The message says how many it accepts."""


class UnknownLanguageError(Exception):
    """No model translates this language, or this pair of languages.

    Attributes:
        code: The language as the client wrote it.
        role: Whether it is the source or the target.
    """

    def __init__(self, code: str, role: str) -> None:
        super().__init__(code, role)
        self.code, self.role = code, role


class UnknownModelError(Exception):
    """There is no model of this name, or of the kind that the request needs."""


class TimedOutError(Exception):
    """The request has taken longer than its time limit."""


@dataclass
class Client:
    """Who sends a request: an API key, or anyone if there are no keys."""

    name: str
    key: KeyConfig | None = None

    @property
    def priority(self) -> int:
        """The priority of the client's jobs; lower numbers come first."""
        return 0 if self.key is None else _PRIORITIES[self.key.priority]


@dataclass(frozen=True)
class Direction:
    """A model, and the languages that it is called with."""

    model: ModelInfo
    source: str
    target: str

    @property
    def arguments(self) -> dict[str, str]:
        """The language arguments of the model's methods."""
        found = {}
        if self.model.takes_source_language:
            found["source_language"] = self.source
        if self.model.takes_target_language:
            found["target_language"] = self.target
        return found


class Service:
    """The models of a configuration, behind a bounded queue."""

    def __init__(self, config: ServeConfig, fleet: Fleet, workers: int) -> None:
        self.config, self.fleet = config, fleet
        limits = config.limits
        self.admission = Admission(
            slots=workers * MAX_JOBS, max_tokens=limits.queue_tokens, max_seconds=limits.queue_seconds
        )
        self.is_draining = False
        self.counts: dict[str, int] = {}  # for the metrics, by event
        self._used: dict[tuple[str, str], int] = {}  # characters, by key and month
        self._recent: dict[str, list[float]] = {}  # times of requests, by key

    @property
    def models(self) -> list[ModelInfo]:
        """The models, with the languages that the configuration gives them."""
        configured = {model_name(each): each for each in self.config.models}
        found = []
        for name, model in self.fleet.models.items():
            sources = configured[name].source or model.source_languages
            targets = configured[name].target or model.target_languages
            found.append(dataclasses.replace(model, source_languages=sources, target_languages=targets))
        return found

    def models_of_kind(self, kind: str) -> list[ModelInfo]:
        """Return the models for a kind of task."""
        return [model for model in self.models if model.kind == kind]

    def model(self, name: str | None, kind: str) -> ModelInfo:
        """Return the model ``name``, or the first one for a kind of task.

        Raises:
            UnknownModelError: There is none.
        """
        found = [model for model in self.models_of_kind(kind) if name in (None, model.name)]
        if not found:
            raise UnknownModelError(name or kind)
        return found[0]

    # Keys.

    def client(self, key: str | None) -> Client:
        """Return who has this key, and count the request.

        Raises:
            BadKeyError: There are keys, and this is none of them.
            RateExceededError: The key has sent too many requests.
        """
        if not self.config.keys:
            return Client("anyone")
        digest = hashlib.sha256((key or "").encode("utf-8", "surrogatepass")).hexdigest()
        matching = [own for own in self.config.keys if hmac.compare_digest(own.sha256, digest)]
        if not matching:
            raise BadKeyError
        found = matching[0]
        if found.requests_per_minute is not None:
            now = time.monotonic()
            recent = [at for at in self._recent.get(found.name, ()) if at > now - _MINUTE_S]
            if len(recent) >= found.requests_per_minute:
                raise RateExceededError(max(1, round(recent[0] + _MINUTE_S - now)))
            self._recent[found.name] = [*recent, now]
        return Client(found.name, found)

    def characters_used(self, client: Client) -> int:
        """Return the characters that a client has sent in this month."""
        return self._used.get((client.name, time.strftime("%Y-%m")), 0)

    # Languages.

    def direction(self, source: str, target: str, model: str | None = None) -> Direction:
        """Return the model that translates from ``source`` to ``target``.

        Raises:
            UnknownLanguageError: No model translates this pair.
            UnknownModelError: There is no translation model of this name.
        """
        models = self.models_of_kind("translation") if model is None else [self.model(model, "translation")]
        sources = [each for each in models if find_language(source, each.source_languages)]
        if not sources:
            raise UnknownLanguageError(source, "source")
        for each in sources:
            found = find_language(target, each.target_languages)
            if found is not None:
                code = find_language(source, each.source_languages)
                assert code is not None
                return Direction(each, code, found)
        raise UnknownLanguageError(target, "target")

    async def detect(self, text: str) -> DetectedLanguage:
        """Return the language of a text, among those that the models translate from."""
        known = {code for each in self.models_of_kind("translation") for code in each.source_languages}
        return await asyncio.to_thread(detect_language, text, known)

    # Work.

    async def translate(self, client: Client, direction: Direction, texts: Sequence[Any], **keywords: Any) -> list[Any]:
        """Translate texts; see :meth:`headway.predict.Translator.translate_each`. Errors are in their places.

        Raises:
            OverloadedError: The queue is full.
            QuotaExceededError: The client's characters are used up.
            TooLargeError: There are too many texts or characters.
            TimedOutError: The time limit has passed.
            UnavailableError: No worker could do it.
        """
        plain = [text if isinstance(text, str) else text.text for text in texts]
        arguments = direction.arguments | keywords
        found: list[Any] = await self.call(client, direction.model, "translate_each", plain, list(texts), **arguments)
        return found

    async def call(
        self, client: Client, model: ModelInfo, method: str, texts: Sequence[str], *arguments: Any, **keywords: Any
    ) -> Any:
        """Call a method of a model, for work of the size of ``texts``. Raises the errors of :meth:`translate`."""
        async with self._admitted(client, texts):
            return await self._limited(
                self.fleet.call(
                    model.name, method, *arguments, caller=client.name, priority=client.priority, **keywords
                )
            )

    async def stream(
        self, client: Client, model: ModelInfo, method: str, texts: Sequence[str], *arguments: Any, **keywords: Any
    ) -> AsyncIterator[Any]:
        """Call a method that returns an iterator, and yield its values. Raises the errors of :meth:`translate`."""
        async with self._admitted(client, texts):
            values = self.fleet.stream(
                model.name, method, *arguments, caller=client.name, priority=client.priority, **keywords
            )
            async for value in values:
                yield value

    @asynccontextmanager
    async def _admitted(self, client: Client, texts: Sequence[str]) -> AsyncIterator[None]:
        limits, characters = self.config.limits, sum(map(len, texts))
        if len(texts) > limits.texts:
            raise TooLargeError(f"{len(texts):,} texts in one request; at most {limits.texts:,} are accepted")
        if characters > limits.characters:
            raise TooLargeError(f"{characters:,} characters in one request; at most {limits.characters:,} are accepted")
        quota = None if client.key is None else client.key.characters_per_month
        if quota is not None and self.characters_used(client) + characters > quota:
            raise QuotaExceededError
        tokens = sum(map(estimated_tokens, texts))
        async with self.admission.enter(tokens, client.name, client.priority):
            month = client.name, time.strftime("%Y-%m")
            self._used[month] = self._used.get(month, 0) + characters
            yield

    async def _limited(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self.config.limits.request_seconds):
                return await work
        except TimeoutError:
            raise TimedOutError from None


def first_error(results: Sequence[Any]) -> HeadwayError | None:
    """Return the first error among results, or None."""
    return next((each for each in results if isinstance(each, HeadwayError)), None)
