"""The settings of search and generation that come with a pretrained model, as its defaults in Headway.

Translation models:

    num_beams, beam-size            beam_size
    length_penalty, normalize       length_penalty with normalization = "average": score / length^A in all toolkits here
    early_stopping                  stopping = "first"
    max_length, min_length          the same, without the first decoder token, which `transformers` counts
    no_repeat_ngram_size            no_repeat_ngram
    repetition_penalty              repetition_penalty

Language models:

    do_sample = true                        the temperature, 1 unless the folder has another one
    do_sample = false, or several beams     temperature = 0, with beam_size = num_beams
    top_k, top_p, min_p                     the same, if tokens are drawn; top_k is 50 unless the folder has another one
    max_new_tokens, repetition_penalty      the same

A setting with a value that Headway does not have, such as a negative length penalty, is left out. So are the settings
of sampling of translation models, of groups of beams, and Marian's word penalty and factor on the length of the source.
The lengths of a language model are left out, too, if they count the prompt. A CTranslate2 folder contains no settings.

:func:`settings_for_transformers` and :func:`generation_for_transformers` are the other direction.
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
"""The search of argostranslate 1.11, which packages cannot change."""

_SAME_NAMES = {"no_repeat_ngram_size": "no_repeat_ngram", "repetition_penalty": "repetition_penalty"}
_WITH_START = ("max_length", "min_length")  # `transformers` counts the first decoder token
_NEW_TOKENS = {"max_new_tokens": "max_length", "min_new_tokens": "min_length"}


def search_of_transformers(folder: Path) -> DecodingOptions:
    """Return the search settings in a folder of Hugging Face: those of generation_config.json, or of config.json.

    The length penalty of a beam search is 1 unless the folder has another one, as in `transformers`. One beam is not
    taken for a choice, because it is what `transformers` assumes if nothing is chosen.
    """
    stored = _stored(folder)
    settings: dict[str, Any] = {ours: stored.get(theirs) for theirs, ours in _SAME_NAMES.items()}
    settings |= {name: length - 1 for name in _WITH_START if (length := _whole(stored.get(name))) is not None}
    settings |= {ours: stored[theirs] for theirs, ours in _NEW_TOKENS.items() if stored.get(theirs) is not None}
    if (beams := _whole(stored.get("num_beams"))) is not None and beams > 1:
        settings |= _beam(beams, stored.get("length_penalty", 1.0))
        settings["stopping"] = "first" if stored.get("early_stopping") is True else None
    return _accepted_search(settings)


def settings_for_transformers(search: DecodingOptions, max_positions: int) -> dict[str, Any]:
    """Return the settings in generation_config.json that are closest to a search; see :func:`search_of_transformers`.

    Sequences have at most 512 tokens if the search has no maximum, and at most ``max_positions``. `transformers` has no
    penalty like that of Wu et al. ("gnmt"), so its exponent is taken.
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


def generation_of_transformers(folder: Path) -> GenerationOptions:
    """Return a language model's settings in a folder of Hugging Face: in generation_config.json, or in config.json.

    Without a choice between drawing and searching, `transformers` takes the best token, and Headway draws.
    """
    stored = _stored(folder)
    settings: dict[str, Any] = {name: stored.get(name) for name in ("repetition_penalty", "max_new_tokens")}
    beams = _whole(stored.get("num_beams")) or 1
    if stored.get("do_sample") is True:
        settings["temperature"] = stored.get("temperature", 1.0)
        settings |= {name: stored.get(name) for name in ("top_p", "min_p")}
        settings["top_k"] = _whole(stored.get("top_k", _TOP_K)) or None  # 0: all tokens
    elif stored.get("do_sample") is False or beams > 1:
        settings = {"temperature": 0.0, "beam_size": beams if beams > 1 else None, **settings}
    return _accepted(GenerationOptions, settings)


def generation_for_transformers(generation: GenerationOptions) -> dict[str, Any]:
    """Return the settings in generation_config.json that are those of a language model; none if it has none."""
    given = generation.explicit_options()
    shared, drawn = ("repetition_penalty", "max_new_tokens"), ("top_p", "min_p")
    settings: dict[str, Any] = {name: given[name] for name in shared if name in given}
    if given.get("temperature") == 0:
        return {"do_sample": False, "num_beams": generation.beam_size, **settings}
    if {"temperature", "top_k", "top_p", "min_p"} & set(given):
        settings |= {name: given[name] for name in drawn if name in given}
        return {"do_sample": True, "temperature": generation.temperature, "top_k": generation.top_k or 0, **settings}
    return settings


_TOP_K = 50  # of `transformers`, if the folder has none


def _stored(folder: Path) -> dict[str, Any]:
    return read_json(folder / "generation_config.json") or read_json(folder / "config.json") or {}


def search_of_marian(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return the search settings in a decoder.yml of Marian, whose scores are not normalized unless it says so."""
    beams = _whole(settings.get("beam-size"))
    return _accepted_search({} if beams is None else _beam(beams, settings.get("normalize", 0.0)))


def _beam(beams: int, length_penalty: Any) -> dict[str, Any]:
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        return {"beam_size": beams}
    return {"beam_size": beams, "normalization": "average", "length_penalty": float(length_penalty)}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _accepted_search(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return the options with those of the settings that are valid, and that change something."""
    zeros = ("no_repeat_ngram", "min_length")
    accepted = _accepted(
        DecodingOptions, {name: value or None if name in zeros else value for name, value in settings.items()}
    )
    if "length_penalty" not in accepted.model_fields_set:  # the exponent of a normalization that is left out
        given = accepted.model_dump(exclude_unset=True, exclude={"normalization"})
        return DecodingOptions.parse(given, "search")
    return accepted


def _accepted(kind: type[OptionsT], settings: Mapping[str, Any]) -> OptionsT:
    """Return the options with those of the settings that are valid. None means that a setting is not given."""
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
