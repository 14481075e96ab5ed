"""The search settings that come with pretrained models become the defaults of their searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from causal_models import published
from foreign import marian

from headway.bundle import Bundle, LanguageModelBundle
from headway.decode import DecodingOptions
from headway.decode.generation_options import GenerationOptions
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.interop.importing import import_huggingface, import_language_model
from headway.interop.search_settings import (
    parse_marian_search,
    read_transformers_generation,
    read_transformers_search,
    to_transformers_search,
)
from headway.predict import LanguageModel

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # OPUS-MT
        (
            {"num_beams": 6, "max_length": 512, "bad_words_ids": [[58100]]},
            {"beam_size": 6, "normalization": "average", "length_penalty": 1.0, "max_length": 511},
        ),
        # NLLB: greedy search is not a choice, but the length is
        ({"max_length": 200}, {"max_length": 199}),
        ({"num_beams": 1, "length_penalty": 2.0}, {}),
        # a model of summaries
        (
            {
                "num_beams": 4,
                "length_penalty": 2.0,
                "early_stopping": True,
                "no_repeat_ngram_size": 3,
                "min_length": 56,
                "max_length": 142,
            },
            {
                "beam_size": 4,
                "normalization": "average",
                "length_penalty": 2.0,
                "stopping": "first",
                "no_repeat_ngram": 3,
                "min_length": 55,
                "max_length": 141,
            },
        ),
        ({"num_beams": 5, "length_penalty": -1.0}, {"beam_size": 5}),
        ({"num_beams": True, "max_length": "many", "repetition_penalty": 0.5}, {}),
        ({"max_new_tokens": 20, "repetition_penalty": 1.2}, {"max_length": 20, "repetition_penalty": 1.2}),
    ],
)
def test_settings_of_transformers(settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian", **settings}))
    of_config = read_transformers_search(tmp_path)
    assert of_config.model_dump(exclude_unset=True) == expected
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 3}))
    assert read_transformers_search(tmp_path).beam_size == 3  # the file that `transformers` reads, if there is one
    assert read_transformers_search(tmp_path).max_length is None


@pytest.mark.parametrize(
    ("search", "settings"),
    [
        ({}, {"num_beams": 4, "length_penalty": 0.6, "early_stopping": False, "max_length": 512}),
        (
            {"beam_size": 6, "normalization": "average", "length_penalty": 1.0, "stopping": "first", "max_length": 99},
            {"num_beams": 6, "length_penalty": 1.0, "early_stopping": True, "max_length": 100},
        ),
        (
            {"beam_size": 3, "normalization": "average", "length_penalty": 0.0, "min_length": 5, "no_repeat_ngram": 3},
            {"num_beams": 3, "length_penalty": 0.0, "min_length": 6, "no_repeat_ngram_size": 3},
        ),
    ],
)
def test_an_export_has_the_settings_of_the_model(
    search: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    written = to_transformers_search(DecodingOptions(**search), 1024)
    assert settings.items() <= written.items()
    transformers.GenerationConfig(**written).validate(strict=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert search.items() <= read_transformers_search(tmp_path).model_dump(exclude_unset=True).items()
    assert to_transformers_search(DecodingOptions(**search), 64)["max_length"] == 64


def test_the_values_that_are_left_out_are_those_of_transformers(tmp_path: Path) -> None:
    transformers.GenerationConfig(num_beams=5, do_sample=True).save_pretrained(tmp_path)
    assert not {"length_penalty", "top_k"} & json.loads((tmp_path / "generation_config.json").read_text()).keys()
    expected = transformers.GenerationConfig()._get_default_generation_params()
    assert read_transformers_search(tmp_path).length_penalty == expected["length_penalty"]
    generation = read_transformers_generation(tmp_path)
    assert (generation.top_k, generation.temperature) == (expected["top_k"], expected["temperature"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Llama 3
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9, "top_k": 50}),
        # Qwen2.5
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        ({"do_sample": True, "top_k": 0, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.1}),
        ({"num_beams": 4, "max_new_tokens": 30}, {"temperature": 0.0, "beam_size": 4, "max_new_tokens": 30}),
        ({"do_sample": False}, {"temperature": 0.0}),
        # nothing is chosen: temperature and top_p have no effect in `transformers`
        ({"temperature": 0.9, "top_p": 0.6, "max_length": 4096}, {}),
        ({"do_sample": True, "temperature": -1.0, "top_k": True, "top_p": 2.0}, {}),
    ],
)
def test_settings_of_generation(settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **settings}))
    assert read_transformers_generation(tmp_path).explicit_options() == expected


@pytest.mark.slow_but_every(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "temperature": 0.6, "top_k": 5, "top_p": 0.9, "max_new_tokens": 7},
        {"do_sample": False, "num_beams": 3, "repetition_penalty": 1.25},
    ],
)
def test_a_language_model_keeps_its_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    published("gpt2", tmp_path / "hf")
    path = tmp_path / "hf" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    imported = import_language_model(tmp_path / "hf")
    expected = read_transformers_generation(tmp_path / "hf")
    assert expected.explicit_options()
    imported.bundle.save(tmp_path / "model", imported.card)
    assert "Default generation: temperature = " in (tmp_path / "model" / "README.md").read_text()
    loaded = LanguageModelBundle.load(tmp_path / "model")
    assert loaded.generation == expected
    model = LanguageModel(loaded, device="cpu", precision="float32")
    assert model.generate("ab") == model.generate("ab", **expected.explicit_options())
    export_to("huggingface", loaded, tmp_path / "back")
    written = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert settings.items() <= written.items()
    assert read_transformers_generation(tmp_path / "back") == expected


def test_given_options_replace_those_of_a_model() -> None:
    beam = GenerationOptions(temperature=0.0, beam_size=4, repetition_penalty=1.5)
    assert GenerationOptions.from_defaults(beam, {}) == beam
    drawn = {"temperature": 0.5, "top_k": 3}
    assert GenerationOptions.from_defaults(beam, drawn).explicit_options() == {**drawn, "repetition_penalty": 1.5}
    with pytest.raises(ConfigError, match="parameters: n = 5"):
        GenerationOptions.from_defaults(beam, {"n": 5}, "parameters")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beam-size": 6, "normalize": 1.0}, {"beam_size": 6, "normalization": "average", "length_penalty": 1.0}),
        ({"beam-size": 12}, {"beam_size": 12, "normalization": "average", "length_penalty": 0.0}),
        ({"beam-size": 0, "normalize": True}, {}),
        ({"models": ["a.npz"]}, {}),
    ],
)
def test_settings_of_marian(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_marian_search(settings).model_dump(exclude_unset=True) == expected


def test_they_are_stored_in_the_model_folder(tmp_path: Path) -> None:
    folder = marian(tmp_path / "foreign")
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_beams": 6, "max_length": 100}))
    imported = import_huggingface(folder)
    imported.bundle.save(tmp_path / "model", imported.card)
    stored = json.loads((tmp_path / "model" / "config.json").read_text())["search"]
    assert stored == {"beam_size": 6, "normalization": "average", "length_penalty": 1.0, "max_length": 99}
    assert Bundle.load_without_weights(tmp_path / "model").search.model_dump(exclude_unset=True) == stored
    assert "Default search: beam_size = 6, " in (tmp_path / "model" / "README.md").read_text()
