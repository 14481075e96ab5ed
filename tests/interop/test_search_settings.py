"""The search settings that come with pretrained models become the defaults of their searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign import marian

from headway.bundle import Bundle
from headway.interop.importing import import_huggingface
from headway.interop.search_settings import search_of_marian, search_of_transformers

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
    of_config = search_of_transformers(tmp_path)
    assert of_config.model_dump(exclude_unset=True) == expected
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 3}))
    assert search_of_transformers(tmp_path).beam_size == 3  # the file that `transformers` reads, if there is one
    assert search_of_transformers(tmp_path).max_length is None


def test_the_length_penalty_that_is_left_out_is_that_of_transformers(tmp_path: Path) -> None:
    transformers.GenerationConfig(num_beams=5).save_pretrained(tmp_path)
    assert "length_penalty" not in json.loads((tmp_path / "generation_config.json").read_text())
    expected = transformers.GenerationConfig()._get_default_generation_params()["length_penalty"]
    assert search_of_transformers(tmp_path).length_penalty == expected


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
    assert search_of_marian(settings).model_dump(exclude_unset=True) == expected


def test_they_are_stored_in_the_model_folder(tmp_path: Path) -> None:
    folder = marian(tmp_path / "foreign")
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_beams": 6, "max_length": 100}))
    imported = import_huggingface(folder)
    imported.bundle.save(tmp_path / "model", imported.card)
    stored = json.loads((tmp_path / "model" / "config.json").read_text())["search"]
    assert stored == {"beam_size": 6, "normalization": "average", "length_penalty": 1.0, "max_length": 99}
    assert Bundle.load_outline(tmp_path / "model").search.model_dump(exclude_unset=True) == stored
    assert "Default search: beam_size = 6, " in (tmp_path / "model" / "README.md").read_text()
