"""The options of a translation, except the texts and the glossary."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypedDict

from pydantic import Field, field_validator

from headway.config import Config
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.predict.markup.html import MarkupKind, MarkupOptions

_CACHED_CHARACTERS = 1000  # longer options contain lists from a request, which should not stay in memory


class TranslateOptions(Config):
    """Options for translating texts.

    :meth:`headway.predict.TextTranslator.translate` has keywords with the same names. For another process, options are
    serialized as JSON. Options with default values, and search options that were not given, are omitted.
    """

    decoding: DecodingOptions = Field(
        PAPER_OPTIONS, description="Options of the search. Options that are not given have the model's values."
    )
    target_language: str | None = Field(
        None, description="The language to translate into, for models with several target languages."
    )
    source_language: str | None = Field(
        None, description="The language of the texts, for imported models that need it."
    )
    alignment: bool = Field(False, description="Whether to align each target token to a source token.")
    markup: MarkupOptions | None = Field(
        None,
        description='The syntax of the texts: "html" or "xml", or options. Tags are kept, and inline tags enclose the '
        "translations of the words that they enclose in the source. Default: plain text.",
    )
    protect: bool = Field(
        True,
        description="Whether placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks "
        "are kept. This option has no effect on a text that contains none of these.",
    )

    @field_validator("markup", mode="before")
    @classmethod
    def _options_of_kind(cls, markup: Any) -> Any:
        return MarkupOptions.of(markup) if isinstance(markup, str) else markup

    @classmethod
    def of(cls, decoding: DecodingOptions, keywords: TranslateKeywords) -> TranslateOptions:
        """Create options from search options and the keywords of :meth:`headway.predict.TextTranslator.translate`.

        Raises:
            ConfigError: A keyword or its value is invalid.
        """
        return cls.parse({"decoding": decoding, **keywords}, "options")

    def with_defaults(self, search: DecodingOptions) -> TranslateOptions:
        """Return these options with the values of ``search`` for all search options that were not given.

        Raises:
            ConfigError: A default is not compatible with the given options.
        """
        decoding = self.decoding.with_defaults(search)
        return self if decoding is self.decoding else self.model_copy(update={"decoding": decoding})

    def cache_key(self) -> str:
        """Return a string that is equal for equal options, whether default values are given or omitted.

        The model's search settings must already be included (:meth:`with_defaults`).
        """
        return json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)

    def __reduce__(self) -> tuple[Callable[[str], TranslateOptions], tuple[str]]:
        # Pydantic's own JSON cannot contain half a surrogate pair, which a user's JSON may.
        values = self.model_dump(exclude_defaults=True, exclude={"decoding"})
        if given := self.decoding.model_dump(exclude_unset=True):  # a given default takes precedence over the model's
            values["decoding"] = given
        return _options_of_json, (json.dumps(values),)


def _options_of_json(text: str) -> TranslateOptions:
    # Most requests have the same few options, which are immutable.
    return (_cached_options if len(text) <= _CACHED_CHARACTERS else _parsed_options)(text)


def _parsed_options(text: str) -> TranslateOptions:
    return TranslateOptions.model_validate(json.loads(text))


_cached_options = lru_cache(maxsize=256)(_parsed_options)
DEFAULT_OPTIONS = TranslateOptions()


class TranslateKeywords(TypedDict, total=False):
    """The fields of :class:`TranslateOptions` as keywords, except ``decoding``, which is a positional argument."""

    target_language: str | None
    source_language: str | None
    alignment: bool
    markup: MarkupOptions | MarkupKind | None
    protect: bool
