"""Convert a pretrained model's search and generation settings to defaults in Headway.

Translation models:

    num_beams, beam-size            beam_size
    length_penalty, normalize       length_penalty with normalization = "average": score / length^A in all toolkits here
    early_stopping                  stopping = "first"
    max_length, min_length          the same, except that `transformers` includes the first decoder token
    no_repeat_ngram_size            no_repeat_ngram
    repetition_penalty              repetition_penalty

Language models:

    do_sample = true                        the temperature; 1 unless the folder sets another
    do_sample = false, or several beams     temperature = 0, with beam_size = num_beams
    top_k, top_p, min_p                     the same, if tokens are sampled; top_k is 50 unless the folder sets another
    max_new_tokens, repetition_penalty      the same

A setting with a value that Headway does not support, such as a negative length penalty, is ignored. Sampling settings
of translation models, groups of beams, and Marian's word penalty and factor for the source length are also ignored. A
language model's length limits are ignored if they include the prompt. A CTranslate2 folder contains no settings.

:func:`to_transformers_search` and :func:`to_transformers_generation` convert settings in the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from headway.config import Config
from headway.decode.generation_options import GenerationOptions
from headway.decode.request import DecodingOptions
from headway.errors import ConfigError
from headway.interop.json_objects import read_json

OptionsT = TypeVar("OptionsT", bound=Config)

ARGOS_SEARCH = DecodingOptions(beam_size=4, normalization="average", length_penalty=0.2, stopping="first")
"""The search options of argostranslate 1.11, which packages cannot change."""

_SAME_NAMES = {"no_repeat_ngram_size": "no_repeat_ngram", "repetition_penalty": "repetition_penalty"}
_WITH_START = ("max_length", "min_length")  # `transformers` counts the first decoder token
_NEW_TOKENS = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}


def read_transformers_search(folder: Path) -> DecodingOptions:
    """Return the search settings in a Hugging Face folder, from generation_config.json or, without it, config.json.

    As in `transformers`, the length penalty of a beam search is 1 unless the folder sets another. A beam size of 1 is
    ignored, because it is the default of `transformers`.
    """
    stored = _stored(folder)
    settings: dict[str, Any] = {ours: stored.get(theirs) for theirs, ours in _SAME_NAMES.items()}
    settings |= {name: length - 1 for name in _WITH_START if (length := _whole(stored.get(name))) is not None}
    settings |= {ours: stored[theirs] for theirs, ours in _NEW_TOKENS.items() if stored.get(theirs) is not None}
    if (beams := _whole(stored.get("num_beams"))) is not None and beams > 1:
        settings |= _beam(beams, stored.get("length_penalty", 1.0))
        settings["stopping"] = "first" if stored.get("early_stopping") is True else None
    return _accepted_search(settings)


def to_transformers_search(search: DecodingOptions, max_positions: int) -> dict[str, Any]:
    """Return the settings for generation_config.json that are closest to a search. Inverse of
    :func:`read_transformers_search`.

    Sequences are limited to 512 tokens if the search has no maximum length, and to ``max_positions``. `transformers`
    does not support the length penalty of Wu et al. ("gnmt"), so only its exponent is used.
    """
    longest = 512 if search.max_length is None else search.max_length + 1
    others = {theirs: getattr(search, ours) for theirs, ours in _SAME_NAMES.items() if ours in search.model_fields_set}
    return {
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty,
        "early_stopping": search.stopping == "first",
        "max_length": min(longest, max_positions),
        **({"min_length": search.min_length + 1} if search.min_length else {}),
        **others,
    }


def read_transformers_generation(folder: Path) -> GenerationOptions:
    """Return a language model's settings in a Hugging Face folder, from generation_config.json or, without it,
    config.json.

    If a folder sets neither sampling nor search, `transformers` takes the best token, but Headway samples.
    """
    stored = _stored(folder)
    settings: dict[str, Any] = {name: stored.get(name) for name in ("repetition_penalty", "max_new_tokens")}
    beams = _whole(stored.get("num_beams")) or 1
    if stored.get("do_sample") is True:
        settings["temperature"] = stored.get("temperature", 1.0)
        settings |= {name: stored.get(name) for name in ("top_p", "min_p")}
        settings["top_k"] = _whole(stored.get("top_k", _TOP_K)) or None  # 0 means all tokens
    elif stored.get("do_sample") is False or beams > 1:
        settings = {"temperature": 0.0, "beam_size": beams if beams > 1 else None, **settings}
    return _accepted(GenerationOptions, settings)


def to_transformers_generation(generation: GenerationOptions) -> dict[str, Any]:
    """Return the settings for generation_config.json that are set for a language model, if any."""
    given = generation.explicit_options()
    shared, drawn = ("repetition_penalty", "max_new_tokens"), ("top_p", "min_p")
    settings: dict[str, Any] = {name: given[name] for name in shared if name in given}
    if given.get("temperature") == 0:
        return {"do_sample": False, "num_beams": generation.beam_size, **settings}
    if {"temperature", "top_k", "top_p", "min_p"} & set(given):
        settings |= {name: given[name] for name in drawn if name in given}
        return {"do_sample": True, "temperature": generation.temperature, "top_k": generation.top_k or 0, **settings}
    return settings


_TOP_K = 50  # default of `transformers`


def _stored(folder: Path) -> dict[str, Any]:
    return read_json(folder / "generation_config.json") or read_json(folder / "config.json") or {}


def parse_marian_search(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return the search settings in Marian's decoder.yml. Scores are not normalized unless it sets ``normalize``."""
    beams = _whole(settings.get("beam-size"))
    return _accepted_search({} if beams is None else _beam(beams, settings.get("normalize", 0.0)))


def _beam(beams: int, length_penalty: Any) -> dict[str, Any]:
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        return {"beam_size": beams}
    return {"beam_size": beams, "normalization": "average", "length_penalty": float(length_penalty)}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _accepted_search(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return options with the valid ``settings``, except settings that have no effect."""
    zeros = ("no_repeat_ngram", "min_length")
    accepted = _accepted(
        DecodingOptions, {name: value or None if name in zeros else value for name, value in settings.items()}
    )
    if "length_penalty" not in accepted.model_fields_set:  # the normalization has no effect without its exponent
        given = accepted.model_dump(exclude_unset=True, exclude={"normalization"})
        return DecodingOptions.parse(given, "search")
    return accepted


def _accepted(kind: type[OptionsT], settings: Mapping[str, Any]) -> OptionsT:
    """Return options with the valid ``settings``. None means that a setting is not set."""
    chosen: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        try:
            kind.parse({**chosen, name: value}, "search")
        except ConfigError:
            continue
        chosen[name] = value
    return kind.parse(chosen, "search")
