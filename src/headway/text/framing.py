"""What stands around a sentence's ids: the end symbol, and the codes of languages that are chosen at each call.

A multilingual model is told its languages by tokens: Headway's own by a tag before the source ("<2en> X <eos>"),
OPUS-MT likewise, M2M-100 and NLLB by the source's language before the source and the target's as the first target
token. A :class:`Framing` is stored with a model; :meth:`Framing.frame` is one call's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from headway.config import Config
from headway.errors import ConfigError
from headway.text.tokenizer import EOS

__all__ = ["Frame", "Framing", "LanguageSide", "Slot"]

LanguageSide = Literal["source_language", "target_language"]
Slot = int | LanguageSide
_OPTIONS: dict[LanguageSide, tuple[str, str]] = {
    "source_language": ("from", "--from"),
    "target_language": ("into", "--to"),
}


@dataclass(frozen=True)
class Frame:
    """The ids around one sentence, languages chosen: the model reads ``source_prefix + X + source_suffix``, and its
    target is forced to begin with ``target_prefix``."""

    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    target_prefix: tuple[int, ...]

    def source(self, ids: Sequence[int]) -> list[int]:
        """``ids`` as the model reads them."""
        return [*self.source_prefix, *ids, *self.source_suffix]

    @property
    def source_extra(self) -> int:
        """How many ids are added to a source."""
        return len(self.source_prefix) + len(self.source_suffix)


class Framing(Config):
    """How a model wants its sentences; ids are Headway's."""

    source_prefix: tuple[Slot, ...] = Field((), description="What comes before a source: ids or a language's place.")
    source_suffix: tuple[Slot, ...] = Field((EOS,), description="What comes after a source.")
    target_prefix: tuple[Slot, ...] = Field((), description="What every target begins with, after the begin symbol.")
    languages: dict[str, int] = Field(default_factory=dict, description="The id of each language's code.")
    source_language: str | None = Field(None, description="The source's language where none is asked for.")
    target_language: str | None = Field(None, description="The target's language where none is asked for.")

    @property
    def languages_used(self) -> frozenset[LanguageSide]:
        """Of which sides the model is told the language."""
        slots = (*self.source_prefix, *self.source_suffix, *self.target_prefix)
        return frozenset(slot for slot in slots if isinstance(slot, str))

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The languages that the source may be in; empty where the model is not told."""
        return tuple(self.languages) if "source_language" in self.languages_used else ()

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that the model can be asked for; empty where it is not told."""
        return tuple(self.languages) if "target_language" in self.languages_used else ()

    def frame(self, *, source_language: str | None = None, target_language: str | None = None) -> Frame:
        """What to put around sentences of these languages; :class:`ConfigError` names an unknown one and the known."""
        chosen = {
            "source_language": self._code("source_language", source_language, self.source_language),
            "target_language": self._code("target_language", target_language, self.target_language),
        }

        def filled(slots: tuple[Slot, ...]) -> tuple[int, ...]:
            ids = (chosen[slot] if isinstance(slot, str) else slot for slot in slots)
            return tuple(index for index in ids if index is not None)

        return Frame(filled(self.source_prefix), filled(self.source_suffix), filled(self.target_prefix))

    def _code(self, side: LanguageSide, asked: str | None, default: str | None) -> int | None:
        direction, option = _OPTIONS[side]
        if side not in self.languages_used:
            if asked is None:
                return None
            what = side.replace("_", " ")
            raise ConfigError(
                f"{what} {asked!r}: this model has one {what} and is not told it; leave it out ({side}=, on the "
                f"command line {option})"
            )
        wanted = default if asked is None else asked
        if wanted is not None and wanted in self.languages:
            return self.languages[wanted]
        got = "none was given" if asked is None else f"got {asked!r}"
        raise ConfigError(
            f"this model translates {direction} several languages and must be told which: {got}; "
            f"give one of {', '.join(self.languages)} ({side}=, on the command line {option})"
        )
