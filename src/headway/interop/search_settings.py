"""The search settings that come with a pretrained model, as the defaults of its searches in Headway.

    num_beams, beam-size            beam_size
    length_penalty, normalize       length_penalty with normalization = "average": score / length^A in all toolkits here
    early_stopping                  stopping = "first"
    max_length, min_length          the same, without the first decoder token, which `transformers` counts
    no_repeat_ngram_size            no_repeat_ngram
    repetition_penalty              repetition_penalty

A setting with a value that Headway does not have, such as a negative length penalty, is left out. So are the settings
of sampling and of groups of beams, and Marian's word penalty and factor on the length of the source. A CTranslate2
folder contains no search settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.decode.request import DecodingOptions
from headway.errors import ConfigError
from headway.interop.huggingface.checkpoint import read_json

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
    stored = read_json(folder / "generation_config.json") or read_json(folder / "config.json") or {}
    settings: dict[str, Any] = {ours: stored.get(theirs) for theirs, ours in _SAME_NAMES.items()}
    settings |= {name: length - 1 for name in _WITH_START if (length := _whole(stored.get(name))) is not None}
    settings |= {ours: stored[theirs] for theirs, ours in _NEW_TOKENS.items() if stored.get(theirs) is not None}
    if (beams := _whole(stored.get("num_beams"))) is not None and beams > 1:
        settings |= _beam(beams, stored.get("length_penalty", 1.0))
        settings["stopping"] = "first" if stored.get("early_stopping") is True else None
    return _accepted(settings)


def search_of_marian(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return the search settings in a decoder.yml of Marian, whose scores are not normalized unless it says so."""
    beams = _whole(settings.get("beam-size"))
    return _accepted({} if beams is None else _beam(beams, settings.get("normalize", 0.0)))


def _beam(beams: int, length_penalty: Any) -> dict[str, Any]:
    if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
        return {"beam_size": beams}
    return {"beam_size": beams, "normalization": "average", "length_penalty": float(length_penalty)}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _accepted(settings: Mapping[str, Any]) -> DecodingOptions:
    """Return the options with those of the settings that are valid, and that change something."""
    chosen: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None or (name in ("no_repeat_ngram", "min_length") and value == 0):
            continue
        try:
            DecodingOptions.parse({**chosen, name: value}, "search")
        except ConfigError:
            continue
        chosen[name] = value
    if "length_penalty" not in chosen:  # the exponent of a normalization that is left out
        chosen.pop("normalization", None)
    return DecodingOptions.parse(chosen, "search")
