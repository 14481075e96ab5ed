"""The options of a translation, apart from the texts and the glossary."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypedDict

from pydantic import Field, field_validator

from headway.config import Config
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.predict.markup.html import MarkupKind, MarkupOptions


class TranslateOptions(Config):
    """How texts are translated.

    :meth:`headway.predict.TextTranslator.translate` has keywords of the same names. Options that are sent to another
    process are serialized as JSON without those that have their default value or, of the search, that were not given.
    """

    decoding: DecodingOptions = Field(
        PAPER_OPTIONS, description="Options of the search. Those that are not given are the model's."
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
        "are kept. A text that contains none of them is translated as if this were false.",
    )

    @field_validator("markup", mode="before")
    @classmethod
    def _options_of_kind(cls, markup: Any) -> Any:
        return MarkupOptions.of(markup) if isinstance(markup, str) else markup

    @classmethod
    def of(cls, decoding: DecodingOptions, keywords: TranslateKeywords) -> TranslateOptions:
        """Return the options with the keywords of :meth:`headway.predict.TextTranslator.translate`.

        Raises:
            ConfigError: A keyword or its value is invalid.
        """
        return cls.parse({"decoding": decoding, **keywords}, "options")

    def with_defaults(self, search: DecodingOptions) -> TranslateOptions:
        """Return these options, in which search options that were not given have the values of ``search``.

        Raises:
            ConfigError: A default does not fit the given options.
        """
        decoding = self.decoding.with_defaults(search)
        return self if decoding is self.decoding else self.model_copy(update={"decoding": decoding})

    def key(self) -> str:
        """Return a text that is the same for equal options, whether a default is given or left out.

        The search settings of a model have to be among the options (:meth:`with_defaults`).
        """
        return json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True)

    def __reduce__(self) -> tuple[Callable[[str], TranslateOptions], tuple[str]]:
        # Pydantic's own JSON cannot contain half a surrogate pair, which a user's JSON may.
        values = self.model_dump(exclude_defaults=True, exclude={"decoding"})
        if given := self.decoding.model_dump(exclude_unset=True):  # a given default takes precedence over the model's
            values["decoding"] = given
        return _options_of_json, (json.dumps(values),)


def _options_of_json(text: str) -> TranslateOptions:
    return TranslateOptions.model_validate(json.loads(text))


DEFAULT_OPTIONS = TranslateOptions()


class TranslateKeywords(TypedDict, total=False):
    """The fields of :class:`TranslateOptions` as keywords, without ``decoding``, which is an argument by position."""

    target_language: str | None
    source_language: str | None
    alignment: bool
    markup: MarkupOptions | MarkupKind | None
    protect: bool
