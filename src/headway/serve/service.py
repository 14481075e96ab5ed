"""The service behind all APIs, independent of HTTP. It enforces keys and limits, chooses models, and calls workers."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import ConfigError, HeadwayError
from headway.kinds import Capability
from headway.predict import Candidate, Translation
from headway.predict.markup.html import MarkupOptions, translatable_text
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateOptions
from headway.predict.translation.pivot import pivot_search_options
from headway.serve.admission import Admission
from headway.serve.bulk_jobs import BulkJob, BulkJobs, BulkWork
from headway.serve.cache import ResultCache
from headway.serve.clients import Client, Clients, PassedLimits, RequestSizes
from headway.serve.config import ModelConfig, ServeConfig, model_name
from headway.serve.cost import Cost, cost_of_detection, cost_of_glossary, cost_of_texts, cost_of_translation
from headway.serve.directions import Direction, Directions
from headway.serve.errors import OverloadedError, TimedOutError, UnknownLanguageError, UnknownModelError
from headway.serve.glossaries import (
    Dictionary,
    GlossaryDigest,
    GlossaryEditor,
    GlossaryLines,
    GlossaryStore,
    StoredGlossary,
)
from headway.serve.languages import DetectedLanguage, detect_language, find_language
from headway.serve.model_info import ModelInfo, PivotModels
from headway.serve.received_bytes import ReceivedBytes
from headway.serve.translation_json import to_json
from headway.serve.turns import FairSemaphore
from headway.serve.usage import Usage
from headway.serve.workers.fleet import MAX_JOBS_PER_WORKER, Fleet
from headway.serve.workers.messages import Job, ModelFunction
from headway.serve.workers.model_pool import ModelPool
from headway.text.languages import base_language

_MODEL_TITLES: dict[Capability, str] = {
    "translates": "translation model",
    "labels": "classifier",
    "continues": "language model",
    "fills": "masked language model",
}
T = TypeVar("T")
_GROUPS_PER_WORKER = 2  # number of groups of bulk texts per worker
_FIRST_RATE = 1000.0  # initial estimate of tokens/s per worker, about the speed of the paper's base model in int8
_DETECTED_CHARACTERS = 10_000  # number of characters of each text that are used to detect its language
_BATCH_TOKENS = 1536  # estimated tokens that fit into a worker's batch: 32 long sentences with four hypotheses each

used_pivots: ContextVar[list[str]] = ContextVar("used_pivots")
"""The pivot languages of the current request's translations, for a header of the reply."""


class Service:
    """Serves the models of a configuration to many clients, behind a bounded queue."""

    def __init__(
        self, config: ServeConfig, pool: ModelPool, workers: int, glossaries: GlossaryStore, usage: Usage
    ) -> None:
        self.glossaries = glossaries
        self.glossary_editor = GlossaryEditor(glossaries, self._check_changed_dictionaries)
        self.clients = Clients(lambda: self.config.keys, usage)
        self.sizes = RequestSizes(lambda: self.config.limits)
        self.received = ReceivedBytes(lambda: self.config.limits)
        limits = config.limits
        self.admission = Admission(
            slots=workers * MAX_JOBS_PER_WORKER,
            max_tokens=limits.queue_tokens,
            max_seconds=limits.queue_seconds,
            leaves_room=len(config.keys) > 1,
            batch_tokens=workers * _BATCH_TOKENS,
            first_rate=workers * _FIRST_RATE,
        )
        self.jobs = BulkJobs(self.admission, workers * _GROUPS_PER_WORKER)
        self.is_draining = False
        self._preparing = Counter[GlossaryDigest]()  # unfinished calls whose cost includes preparing a glossary
        # Only one thread detects languages, and one reads whole glossaries, so that they hardly delay the event loop.
        self._detecting, self._reading = FairSemaphore(1), FairSemaphore(1)
        self.replace_models(config, pool)

    def replace_models(self, config: ServeConfig, pool: ModelPool) -> None:
        """Serve the models in ``pool`` from now on, with the keys and the limits on single requests in ``config``."""
        self.config, self.pool = config, pool
        self.models = [
            _configured(pool.models[model_name(model_config)], model_config) for model_config in config.models
        ]
        translating = self.models_that("translates")
        self.directions = Directions(translating, pivot_candidates=config.pivot_candidates if config.pivot else 0)
        self.pairs = self.directions.pairs()
        self.source_languages = sorted({code for model in translating for code in model.source_languages})
        self.target_languages = sorted({code for model in translating for code in model.target_languages})
        self.languages = sorted({*self.source_languages, *self.target_languages})
        self.cache = ResultCache(round(config.limits.cache_mb * 1e6))
        self._lists: dict[str, asyncio.Future[bytes]] = {}

    def models_that(self, capability: Capability) -> list[ModelInfo]:
        """Return the models with a capability."""
        return [model for model in self.models if model.capability == capability]

    def find_model(self, name: str | None, *capabilities: Capability) -> ModelInfo:
        """Return the model ``name`` or, if it is None, the first model with one of these capabilities.

        Raises:
            UnknownModelError: No model has this name and one of these capabilities.
        """
        fitting = [model for model in self.models if model.capability in capabilities and name in (None, model.name)]
        if not fitting:
            missing = f"model {name}" if name else " or ".join(_MODEL_TITLES[name] for name in capabilities)
            raise UnknownModelError(f"There is no {missing}")
        return fitting[0]

    @property
    def unavailable_reason(self) -> str | None:
        """The reason why the service does not accept requests now, or None if it accepts them."""
        if self.is_draining:
            return "the service is shutting down"
        return None if self.pool.is_available else "no worker is ready"

    # Languages.

    def find_direction(self, source: str, target: str, model: str | None = None, *, direct: bool = False) -> Direction:
        """Return the model, or unless ``direct`` the two models, that translate from ``source`` to ``target``.

        Raises:
            UnknownLanguageError: No model translates this pair of languages.
            UnknownModelError: No translation model has this name.
        """
        named = None if model is None else self.find_model(model, "translates")
        chosen = self.directions.find(source, target, named, direct=direct)
        pivots = used_pivots.get(None)
        if pivots is not None and chosen.pivot is not None and chosen.pivot not in pivots:
            pivots.append(chosen.pivot)
        return chosen

    async def cached_list(self, name: str, make: Callable[[], Any]) -> bytes:
        """Return as JSON a list that depends on the models. Only the first call with ``name`` calls ``make``.

        The list is computed in a thread, because it may be long: a model with 400 languages has 160,000 pairs.
        """
        lists = self._lists  # the lists for the current models, which may be replaced meanwhile
        if name not in lists:
            lists[name] = asyncio.ensure_future(asyncio.to_thread(lambda: to_json(make())))
        try:
            return await asyncio.shield(lists[name])  # if this request is canceled, others may still wait for the list
        except Exception:
            lists.pop(name, None)  # the next request tries again
            raise

    async def detect(self, client: Client, texts: Sequence[str], *, is_counted: bool = False) -> list[DetectedLanguage]:
        """Detect the language of each text from its first 10,000 characters.

        A language that no model translates from is returned only if it is clearly more probable. The characters count
        for the quota, unless ``is_counted``, which means that the texts are also translated and counted then.

        Raises:
            OverloadedError: The queue is full.
            QuotaExceededError: The client's quota would be exceeded.
            TimedOutError: The time limit has passed.
            TooLargeError: There are too many texts or characters.
        """
        self.sizes.check_texts(texts)
        if is_counted:
            return await self._detect(client, texts)
        characters = cost_of_detection(_beginnings(texts)).num_characters
        self.clients.check_quota(client, characters)
        self.clients.count_characters(client, characters)
        try:
            return await self._detect(client, texts)
        except (OverloadedError, TimedOutError):
            self.clients.count_characters(client, -characters)
            raise

    async def _detect(
        self, client: Client, texts: Sequence[str], markup: MarkupOptions | None = None
    ) -> list[DetectedLanguage]:
        """Detect the languages of texts in a thread, after waiting in the queue unless the client has already waited.

        Only one thread detects languages at a time, and the clients take turns.
        """
        served, beginnings, is_over = self.source_languages, _beginnings(texts), threading.Event()

        def detect() -> list[DetectedLanguage]:
            detected = list[DetectedLanguage]()
            for beginning in beginnings:
                if is_over.is_set():  # the client has disconnected
                    break
                text = beginning if markup is None else translatable_text(beginning, markup)
                detected.append(detect_language(text, served))
            return detected

        has_room = client.passed_limits is PassedLimits.CHECKED
        has_waited = client.passed_limits in (PassedLimits.ADMITTED, PassedLimits.BACKGROUND)
        tokens = cost_of_detection(beginnings).work_tokens
        place: AbstractAsyncContextManager[None] = (
            nullcontext()
            if has_waited
            else self.admission.enter(tokens, client.name, client.priority, has_room=has_room)
        )
        try:
            async with asyncio.timeout(None if has_waited else self.config.limits.request_seconds):
                async with place, self._detecting.slot(client.name, 1):
                    return await asyncio.to_thread(detect)
        except TimeoutError:
            raise TimedOutError from None
        finally:
            is_over.set()

    # Glossaries.

    async def read_glossary(self, client: Client, read: Callable[[], T]) -> T:
        """Call a function that reads all entries of a glossary in a thread. The clients take turns."""
        async with self._reading.slot(client.name, 1):
            return await asyncio.to_thread(read)

    async def _check_changed_dictionaries(self, owner: str, dictionaries: Sequence[Dictionary]) -> None:
        """Check dictionaries with models for their languages.

        Raises :class:`UnknownLanguageError`, and the same exceptions as :meth:`check_dictionaries`.
        """
        await self.check_dictionaries(
            owner, [(dictionary, self._model_for_dictionary(dictionary)) for dictionary in dictionaries]
        )

    async def check_dictionaries(
        self, owner: str, dictionaries: Sequence[tuple[Dictionary, ModelInfo | PivotModels]]
    ) -> None:
        """Check that each dictionary can be applied by its model, all within the time limit of a request.

        Raises:
            HeadwayError: An entry is malformed, contradicts another entry, or cannot be generated by the model.
            TimedOutError: The time limit has passed.
        """
        try:
            async with asyncio.timeout(self.config.limits.request_seconds):
                for dictionary, model in dictionaries:
                    keywords = {"glossary": dictionary.glossary_lines}
                    cost = cost_of_glossary(dictionary.lines)
                    async with (
                        self.pool.using(*_names(model)) as fleet,
                        self.admission.enter(cost.work_tokens, owner, 0),
                    ):
                        await fleet.call(Job(_called(model), "check_glossary", (), keywords, owner))
        except TimeoutError:
            raise TimedOutError from None

    def _model_for_dictionary(self, dictionary: Dictionary) -> ModelInfo | PivotModels:
        for pair in self.pairs:
            if (base_language(pair.source), base_language(pair.target)) == (dictionary.source, dictionary.target):
                return self.find_direction(pair.source, pair.target).model
        message = f"No model translates from {dictionary.source} into {dictionary.target}"
        raise UnknownLanguageError(message, "pair", dictionary.source, dictionary.target)

    # Work.

    async def translate(
        self,
        client: Client,
        texts: Sequence[Any],
        source: str,
        target: str,
        model: str | None = None,
        glossary: StoredGlossary | None = None,
        options: TranslateOptions = DEFAULT_OPTIONS,
        *,
        entries: Sequence[Sequence[str]] = (),
        function: ModelFunction = "translate_each",
        has_errors_of_texts: bool = False,
        **keywords: Any,
    ) -> tuple[list[Any], list[DetectedLanguage] | None]:
        """Translate texts; see :meth:`headway.predict.Translator.translate_each`.

        If ``source`` is "auto", the language of each text is detected. A text that is already in the target language is
        returned unchanged, unless a model translates from this language into itself.

        Args:
            client: The client that sends the request.
            texts: Texts to translate.
            source: Source language, or "auto".
            target: Target language.
            model: Name of the model to use. None means the first model for the languages.
            glossary: Glossary to apply.
            options: Translation options.
            entries: Entries of the glossary if the request contains them.
            function: Method or function to call with ``keywords``. It may return the translations in another form; a
                text that is returned unchanged is always a :class:`Translation`.
            has_errors_of_texts: Whether a text in a detected language that no model translates gets its own error.
                Otherwise, the whole request is refused.
            keywords: Further arguments of ``function``.

        Returns:
            The translation or the error of each text, and the detected languages or None.

        Raises:
            UnknownDictionaryError: The glossary has no dictionary for the languages.
            OverloadedError: The queue is full.
            QuotaExceededError: The client's quota would be exceeded.
            TooLargeError: There are too many texts or characters.
            UnknownLanguageError: No model translates this pair of languages.
            UnknownModelError: No translation model has this name.
            TimedOutError: The time limit has passed.
            UnavailableError: No worker is available.
        """
        if client.passed_limits is not PassedLimits.BACKGROUND:
            self.sizes.check_num_texts(texts)
        plain = [text if isinstance(text, str) else text.text for text in texts]
        has_glossary = glossary is not None
        cost = cost_of_translation(texts, options, entries=entries, has_glossary=has_glossary)
        if client.passed_limits is not PassedLimits.BACKGROUND:
            self.sizes.check_cost(cost)
        detected = None
        if source == "auto":
            base = base_language(target)
            if all(base_language(code) != base for code in self.languages):
                raise UnknownLanguageError(f"{target} is not supported", "target", source, target)
            detected = await self._detect(client, plain, options.markup)
        codes = [source] * len(texts) if detected is None else [language.code for language in detected]
        cache = self.cache  # the cache of the current models, which may be replaced meanwhile
        results: dict[int, Any] = {}
        directions: list[tuple[Direction, list[int]]] = []  # determined before the first text is translated and counted
        for code in dict.fromkeys(codes):
            numbers = [number for number, language in enumerate(codes) if language == code]
            try:
                directions.append((self.find_direction(code, target, model), numbers))
            except UnknownLanguageError as error:
                if base_language(target) == base_language(code) and find_language(code, self.languages) is not None:
                    results |= {number: _unchanged(plain[number]) for number in numbers}
                elif detected is None:
                    raise
                elif not has_errors_of_texts:
                    raise error.at_text(numbers[0], len(texts)) from None
                else:
                    results |= dict.fromkeys(numbers, HeadwayError(str(error)))
        for direction, numbers in directions:
            steps = self._steps(direction.model, options)
            arguments: dict[str, Any] = dict(keywords)
            if glossary is not None:
                dictionary = glossary.dictionary(direction.source, direction.target)
                arguments["glossary"] = dictionary.glossary_lines
            shared = (
                direction.model,
                direction.language_arguments,
                [step.cache_key() for step in steps] if cache.is_enabled else [],
                arguments,
                function,
            )
            cache_keys = cache.keys([texts[number] for number in numbers], *shared)
            arguments["options"] = options.model_copy(update=direction.language_arguments)
            keys = dict(zip(numbers, cache_keys, strict=True))
            results |= {number: cache.get(key) for number, key in keys.items()}
            if missing := [number for number in numbers if results[number] is None]:
                missing_texts = [texts[number] for number in missing]
                if len(missing) < len(texts) or steps != [options]:
                    cost = _largest_cost(steps, missing_texts, entries, has_glossary=has_glossary)
                made = await self._call(client, direction.model, function, cost, missing_texts, **arguments)
                results |= zip(missing, made, strict=True)
                for number in missing:
                    cache.put(keys[number], results[number])
        return [results[number] for number in range(len(texts))], detected

    def cost_of_translation(
        self,
        texts: Sequence[Any],
        languages: Collection[tuple[str, str]],
        model: str | None = None,
        options: TranslateOptions = DEFAULT_OPTIONS,
        *,
        entries: Sequence[Sequence[str]] = (),
        has_glossary: bool = False,
    ) -> Cost:
        """Return the cost of :meth:`translate` for the most expensive of several pairs of languages.

        If a source language is to be detected, every model that can take part in the translation is considered.
        Unsupported languages and unknown models are ignored, because translating with them is refused.

        Raises:
            ConfigError: The options are not compatible with the search settings of the model for a pair.
        """
        models: set[ModelInfo | PivotModels] = set()
        for source, target in languages:
            if source != "auto":
                with suppress(UnknownLanguageError, UnknownModelError):
                    named = None if model is None else self.find_model(model, "translates")
                    models.add(self.directions.find(source, target, named).model)
        steps = [step for translating in models for step in self._steps(translating, options)]
        detected_targets = {target for source, target in languages if source == "auto"}
        for candidate in self.models_that("translates"):
            if model in (None, candidate.name) and any(
                self.directions.may_use(candidate, target) for target in detected_targets
            ):
                with suppress(ConfigError):  # translate raises it if a text is in a language of this model
                    steps += self._steps(candidate, options)
        if len(steps) > 1:  # most steps of many models are equal, and a cost may take longer than a key
            steps = [*{step.cache_key(): step for step in steps}.values()]
        return _largest_cost(steps or [options], texts, entries, has_glossary=has_glossary)

    def _steps(self, model: ModelInfo | PivotModels, options: TranslateOptions) -> list[TranslateOptions]:
        """Return the options of a translation, completed with the model's search settings.

        With two models, the options of the second model come first.

        Raises:
            ConfigError: The options are not compatible with a search setting.
        """
        if isinstance(model, ModelInfo):
            return [options.with_defaults(model.search)]
        first, second = (self.find_model(name, "translates").search for name in (model.first, model.second))
        pivots = pivot_search_options(options.decoding, first, model.num_candidates)
        return [options.with_defaults(second), options.model_copy(update={"decoding": pivots})]

    async def call(
        self,
        client: Client,
        model: ModelInfo | PivotModels,
        function: ModelFunction,
        texts: Sequence[str],
        *arguments: Any,
        cost: Cost | None = None,
        **keywords: Any,
    ) -> Any:
        """Call a method of a model, or a function with the model, in a worker.

        ``cost`` defaults to the cost of ``texts``. Raises the same exceptions as :meth:`translate`.
        """
        if cost is None:
            if client.passed_limits is not PassedLimits.BACKGROUND:
                self.sizes.check_num_texts(texts)
            cost = cost_of_texts(texts)
        return await self._call(client, model, function, cost, *arguments, **keywords)

    async def _call(
        self,
        client: Client,
        model: ModelInfo | PivotModels,
        function: ModelFunction,
        cost: Cost,
        *arguments: Any,
        **keywords: Any,
    ) -> Any:
        async with self._admitted(client, model, cost, keywords.get("glossary")) as fleet:
            return await fleet.call(Job(_called(model), function, arguments, keywords, client.name, client.priority))

    async def stream(
        self,
        client: Client,
        model: ModelInfo,
        function: ModelFunction,
        texts: Sequence[str],
        *arguments: Any,
        cost: Cost | None = None,
        **keywords: Any,
    ) -> AsyncGenerator[Any]:
        """Call a method that returns a stream. Yield the parts of its result, and then the result; see :meth:`call`."""
        async with (
            self._admitted(client, model, cost_of_texts(texts) if cost is None else cost) as fleet,
            aclosing(
                fleet.stream(Job(model.name, function, arguments, keywords, client.name, client.priority))
            ) as parts,
        ):
            async for part in parts:
                yield part

    @asynccontextmanager
    async def admit(self, client: Client, model: ModelInfo, cost: Cost) -> AsyncIterator[Client]:
        """Check all limits and wait in the queue once, for a request that makes several calls one after another.

        Yields the client for these calls. Raises the same exceptions as :meth:`translate`.
        """
        async with self._admitted(client, model, cost):
            yield dataclasses.replace(client, passed_limits=PassedLimits.ADMITTED)

    def checked_client(self, client: Client, cost: Cost) -> Client:
        """Return the client for the calls of a request that makes several calls at a time.

        Each call waits for its own slot and is counted, but is not refused because of the other calls.

        Raises:
            OverloadedError: The queue does not have room for all texts together.
            QuotaExceededError: The client's quota would be exceeded.
            TooLargeError: There are too many texts or characters.
        """
        self.sizes.check_cost(cost)
        self.clients.check_quota(client, cost.num_characters)
        self.admission.check_capacity(cost.work_tokens, client.name, client.priority)
        return dataclasses.replace(client, passed_limits=PassedLimits.CHECKED)

    def reserve(self, client: Client, cost: Cost) -> AbstractContextManager[Callable[[int], None]]:
        """Reserve room in the queue for the calls of a :meth:`checked_client` that begin later.

        See :meth:`Admission.reserve <headway.serve.admission.Admission.reserve>`.
        """
        return self.admission.reserve(cost.work_tokens, client.name, client.priority)

    def add_job(
        self,
        client: Client,
        texts: Sequence[str],
        work: BulkWork,
        *,
        characters: int | None = None,
        cost: Cost | None = None,
    ) -> BulkJob:
        """Add a job for bulk texts, and count all its characters now.

        Args:
            client: The client that sends the job.
            texts: Texts to process.
            work: The operation on the texts. It must call this service with ``client.for_background_job()``.
            characters: Number of characters to count. None means all characters of the texts.
            cost: Cost of the whole job. None means the cost of its texts.

        Raises:
            JobsFullError: The client has too many jobs, or they are too large.
            QuotaExceededError: The client's quota would be exceeded.
            TooLargeError: There are too many texts or characters.
        """
        characters = sum(map(len, texts)) if characters is None else characters
        self.sizes.check_job(texts, characters)
        self.clients.check_quota(client, characters)
        usual = cost_of_texts(texts).work_tokens
        scale = 1.0 if cost is None else max(1.0, cost.work_tokens / max(1, usual))
        job = self.jobs.add(client.name, texts, work, self.config.limits, scale)
        self.clients.count_characters(client, characters)
        return job

    @contextmanager
    def _preparation(self, fleet: Fleet, glossary: GlossaryLines | None) -> Iterator[int]:
        """Yield the estimated cost of preparing a glossary, in tokens, or 0.

        The cost is added to one call for each worker that does not have the glossary yet.
        """
        if glossary is None or self._preparing[glossary.digest] >= fleet.num_workers_without_glossary(glossary.digest):
            yield 0
            return
        self._preparing[glossary.digest] += 1
        try:
            yield cost_of_glossary(glossary.text).work_tokens
        finally:
            self._preparing[glossary.digest] -= 1
            if not self._preparing[glossary.digest]:
                del self._preparing[glossary.digest]

    @asynccontextmanager
    async def _admitted(
        self, client: Client, model: ModelInfo | PivotModels, cost: Cost, glossary: GlossaryLines | None = None
    ) -> AsyncIterator[Fleet]:
        """Load the model, wait for a slot, count the characters, and enforce the time limit.

        Yields the workers that do the work.
        """
        tokens = cost.work_tokens
        if isinstance(model, PivotModels):  # the text is translated once, then each of its pivot translations
            tokens *= 1 + model.num_candidates
        is_background = client.passed_limits is PassedLimits.BACKGROUND
        if is_background or client.passed_limits is PassedLimits.ADMITTED:
            async with self.pool.using(*_names(model)) as fleet:
                with self.admission.bypass_queue(tokens) if is_background else nullcontext():
                    yield fleet
            return
        self.sizes.check_cost(cost)
        characters = cost.num_characters
        self.clients.check_quota(client, characters)
        request_seconds = self.config.limits.request_seconds
        has_entered, has_room = False, client.passed_limits is PassedLimits.CHECKED
        # Check before the model is loaded, and again afterwards, because other requests may have arrived.
        if not has_room:
            self.admission.check_capacity(tokens, client.name, client.priority)
        # Count the characters now, so that waiting requests together cannot exceed the quota.
        self.clients.count_characters(client, characters)
        try:
            # Wait for the model first, because loading time must not count as time in the queue.
            async with self.pool.using(*_names(model)) as fleet:
                with self._preparation(fleet, glossary) as preparation:
                    tokens += preparation
                    async with self.admission.enter(tokens, client.name, client.priority, has_room=has_room):
                        has_entered = True
                        async with asyncio.timeout(request_seconds):
                            yield fleet
        except TimeoutError:
            raise TimedOutError from None
        finally:
            if not has_entered:
                self.clients.count_characters(client, -characters)


def _largest_cost(
    steps: Sequence[TranslateOptions], texts: Sequence[Any], entries: Sequence[Sequence[str]], *, has_glossary: bool
) -> Cost:
    """Return the cost of the most expensive step of a translation."""
    costs = [cost_of_translation(texts, step, entries=entries, has_glossary=has_glossary) for step in steps]
    return max(costs, key=lambda cost: cost.work_tokens)


def open_stores(config: ServeConfig) -> tuple[GlossaryStore, Usage]:
    """Open the glossary store and the character counts, which may be kept in files.

    Raises:
        HeadwayError: A file or folder cannot be used.
    """
    folder, file, limits = config.glossary_folder, config.usage_file, config.limits
    glossaries = GlossaryStore(
        None if folder is None else Path(folder),
        max_glossaries=limits.glossaries,
        max_characters=limits.glossary_characters,
        max_entries=limits.glossary_entries,
    )
    usage = Usage(None if file is None else Path(file))
    usage.save()
    return glossaries, usage


def _called(model: ModelInfo | PivotModels) -> str | PivotModels:
    """Return the value that identifies a model or a pair of models in the workers."""
    return model if isinstance(model, PivotModels) else model.name


def _names(model: ModelInfo | PivotModels) -> tuple[str, ...]:
    return (model.first, model.second) if isinstance(model, PivotModels) else (model.name,)


def _beginnings(texts: Sequence[str]) -> list[str]:
    """Return the part of each text that is used to detect its language."""
    return [text[:_DETECTED_CHARACTERS] for text in texts]


def _unchanged(text: str) -> Translation:
    return Translation(text, (Candidate(text, 0.0, 0.0, ()),))


def _configured(model: ModelInfo, config: ModelConfig) -> ModelInfo:
    """Return a model with the languages that the configuration specifies."""
    sources, targets = config.source or model.source_languages, config.target or model.target_languages
    return dataclasses.replace(model, source_languages=sources, target_languages=targets)
