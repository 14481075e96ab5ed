"""The special tokens around a sentence: the end symbol, and tokens for the requested languages.

The languages of a multilingual model are selected with tokens. Headway's own models and OPUS-MT expect a tag for the
target language before the source ("<2en> X <eos>"). M2M-100 and NLLB expect a token for the source language before the
source, and a token for the target language as the first target token. A :class:`SpecialTokenTemplate` is stored with a
model, and :meth:`SpecialTokenTemplate.fill` returns the :class:`SpecialTokens` for a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from headway.config import Config
from headway.errors import ConfigError
from headway.text.base import EOS

LanguageSide = Literal["source_language", "target_language"]
TemplateItem = int | LanguageSide
_OPTIONS: dict[LanguageSide, tuple[str, str]] = {
    "source_language": ("from", "--from"),
    "target_language": ("into", "--to"),
}


@dataclass(frozen=True)
class SpecialTokens:
    """The special token ids around a sentence.

    The model's source is ``source_prefix + X + source_suffix``, and its target is forced to start with
    ``target_prefix``.
    """

    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    target_prefix: tuple[int, ...]

    def add_to_source(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a source with its prefix and suffix."""
        return [*self.source_prefix, *ids, *self.source_suffix]

    @property
    def source_overhead(self) -> int:
        """The number of special tokens that are added to a source."""
        return len(self.source_prefix) + len(self.source_suffix)


class SpecialTokenTemplate(Config):
    """The special tokens that a model expects around a sentence, in Headway's ids, with placeholders for languages."""

    source_prefix: tuple[TemplateItem, ...] = Field((), description="Ids or language placeholders before a source.")
    source_suffix: tuple[TemplateItem, ...] = Field((EOS,), description="Ids or language placeholders after a source.")
    target_prefix: tuple[TemplateItem, ...] = Field(
        (), description="Ids or language placeholders with which every target starts, after BOS."
    )
    languages: dict[str, int] = Field(default_factory=dict, description="Token id of each language code.")
    source_language: str | None = Field(None, description="The default source language.")
    target_language: str | None = Field(None, description="The default target language.")

    @property
    def language_sides(self) -> frozenset[LanguageSide]:
        """The sides whose language is selected with a token."""
        items = (*self.source_prefix, *self.source_suffix, *self.target_prefix)
        return frozenset(item for item in items if isinstance(item, str))

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The available source languages; empty if the source language cannot be selected."""
        return tuple(self.languages) if "source_language" in self.language_sides else ()

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The available target languages; empty if the target language cannot be selected."""
        return tuple(self.languages) if "target_language" in self.language_sides else ()

    def fill(self, *, source_language: str | None = None, target_language: str | None = None) -> SpecialTokens:
        """Return the special tokens for these languages, or raise :class:`ConfigError` if one is unknown."""
        chosen = {
            "source_language": self._code("source_language", source_language, self.source_language),
            "target_language": self._code("target_language", target_language, self.target_language),
        }

        def filled(items: tuple[TemplateItem, ...]) -> tuple[int, ...]:
            ids = (chosen[item] if isinstance(item, str) else item for item in items)
            return tuple(index for index in ids if index is not None)

        return SpecialTokens(filled(self.source_prefix), filled(self.source_suffix), filled(self.target_prefix))

    def _code(self, side: LanguageSide, asked: str | None, default: str | None) -> int | None:
        direction, option = _OPTIONS[side]
        if side not in self.language_sides:
            if asked is None:
                return None
            what = side.replace("_", " ")
            raise ConfigError(
                f"{what} {asked!r}: this model has only one {what}, which cannot be selected; omit it ({side}= in "
                f"Python, {option} on the command line)"
            )
        wanted = default if asked is None else asked
        if wanted is not None and wanted in self.languages:
            return self.languages[wanted]
        got = "none was given" if asked is None else f"got {asked!r}"
        raise ConfigError(
            f"this model translates {direction} several languages, and one must be selected: {got}; choose one of "
            f"{', '.join(self.languages)} ({side}= in Python, {option} on the command line)"
        )
