"""The options of text generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from headway.decode.request import DecodingOptions, Sampling


class GenerationOptions(Sampling):
    """Options for continuing a text. By default, tokens are drawn at random from the model's distribution.

    For a model that was imported with generation settings, these settings are the defaults
    (:attr:`headway.bundle.LanguageModelBundle.generation`).
    """

    temperature: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="Divisor of the logits: values below 1 make draws less random. 0 takes the most probable token.",
    )
    max_new_tokens: int = Field(256, ge=1, description="Maximum number of tokens to add to the prompt.")
    repetition_penalty: float = Field(
        1.0,
        ge=1,
        description="Divisor of the logits of tokens already generated; negative logits are multiplied by it.",
    )
    n: int = Field(1, ge=1, description="Number of continuations to generate for each prompt.")
    beam_size: int = Field(
        1, ge=1, description="With temperature 0: number of hypotheses kept at each step; 1 is greedy search."
    )
    stop: tuple[str, ...] = Field(
        (), fail_fast=True, description="Stop strings. A continuation ends before the first one that it completes."
    )
    include: tuple[str, ...] = Field(
        (),
        fail_fast=True,
        description="With temperature 0 and beam_size >= 2: phrases that a continuation must contain as whole words; "
        "'a|b' requires one of the two.",
    )
    ban: tuple[str, ...] = Field(
        (), fail_fast=True, description="Phrases that no continuation may contain as whole words."
    )
    beyond_context: Literal["stop", "slide"] = Field(
        "stop",
        description="What to do at the end of the model's context: stop, or continue with only its second half "
        "(slide). With stop, a prompt that is longer than the context is an error.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> GenerationOptions:
        if self.temperature and self.beam_size > 1:
            raise ValueError("beam_size needs temperature = 0: draws have no beam; remove one of the two")
        if not self.temperature and self.n > self.beam_size:
            raise ValueError(
                f"n = {self.n}: with temperature = 0 expected at most beam_size, which is {self.beam_size}"
            )
        if not all(self.stop):
            raise ValueError("stop: an empty string would end every continuation; remove it")
        if self.include and (self.temperature or self.beam_size == 1):
            raise ValueError("include needs temperature = 0 and beam_size >= 2: only a beam can guarantee phrases")
        if self.beyond_context == "slide" and (self.include or self.ban or self.repetition_penalty != 1):
            raise ValueError(
                "beyond_context = 'slide' cannot be combined with include, ban or repetition_penalty, which would "
                "ignore the tokens that left the context; remove one of the two"
            )
        return self

    @classmethod
    def from_defaults(
        cls, defaults: GenerationOptions, given: Mapping[str, Any], where: str = "options"
    ) -> GenerationOptions:
        """Return the options ``given``, completed with the options that were explicitly set in ``defaults``.

        The temperature is :meth:`chosen_temperature`. The default ``beam_size`` is ignored if tokens are drawn.

        Raises:
            ConfigError: A value is out of range, two options cannot be combined, or a default is incompatible with the
                given options. ``where`` names the source of the options in the message.
        """
        inherited = {name: getattr(defaults, name) for name in defaults.model_fields_set}
        temperature = cls.chosen_temperature(defaults, given, where)
        if temperature != defaults.temperature:
            inherited["temperature"] = temperature
        if temperature:
            inherited.pop("beam_size", None)
        return cls.parse({**inherited, **given}, where)

    @staticmethod
    def chosen_temperature(defaults: GenerationOptions, given: Mapping[str, Any], where: str = "options") -> Any:
        """Return the temperature in ``given``, whose range is not checked here, or the default temperature.

        If a model takes the most probable token by default, and ``given`` has no temperature but a filter of tokens
        to draw from (``top_k``, ``top_p`` or ``min_p``), the temperature is 1, because filters only apply to sampling.
        It remains 0 if ``given`` also asks for a beam search. Raises :class:`ConfigError`, in which ``where`` names the
        source of the options, if a filter is out of range.
        """
        if "temperature" in given or defaults.temperature or {"beam_size", "include"} & given.keys():
            return given.get("temperature", defaults.temperature)
        filters = {name: given[name] for name in ("top_k", "top_p", "min_p") if name in given}
        return 0.0 if Sampling.parse(filters, where) == Sampling() else 1.0

    def explicit_options(self) -> dict[str, Any]:
        """Return the options that were explicitly set, as keyword arguments."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def to_decoding_options(self) -> DecodingOptions:
        """Return the equivalent search options."""
        shared = {"n_best": self.n, "length_penalty": 0.0, "repetition_penalty": self.repetition_penalty}
        if not self.temperature:
            return DecodingOptions.parse({**shared, "beam_size": self.beam_size}, "options")
        sampling = self.model_dump(include=set(Sampling.model_fields))
        return DecodingOptions.parse({**shared, "sampling": sampling}, "options")


DEFAULT_GENERATION = GenerationOptions()
