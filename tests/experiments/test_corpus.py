from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headway.errors import ConfigError
from headway.experiments.corpus import MULTI30K, find_data, sample_text_pair, write_files
from headway.experiments.experiment import Settings


def settings(work: Path, *, quick: bool = True, data: Path | None = None) -> Settings:
    return Settings(quick=quick, seeds=(1,), data_folder=data, work_folder=work, say=lambda _: None)


def test_an_adjective_stands_behind_its_noun_and_agrees() -> None:
    endings = set()
    for seed in range(50):
        source, target = sample_text_pair(Random(seed))
        words, translated = source.split(), target.split()
        assert len(words) == len(translated)
        if words[:2] == ["big", "cat"]:
            assert translated[:2] == ["kata", "granda"]
        if words[0] == "big":
            assert translated[1] == "grand" + translated[0][-1]
            endings.add(translated[1])
    assert endings == {"grando", "granda"}


def test_a_source_has_one_translation() -> None:
    pairs = {sample_text_pair(Random(seed)) for seed in range(500)}
    assert len({source for source, _ in pairs}) == len(pairs) > 200


def test_other_texts_make_another_folder(tmp_path: Path) -> None:
    one, same, other = (write_files({"a.txt": text}, tmp_path, "text") for text in ("x", "x", "y"))
    assert one == same != other
    assert (other / "a.txt").read_text(encoding="utf-8") == "y"


def test_the_full_form_needs_multi30k(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(ConfigError, match="give a folder with multi30k"):
            find_data(settings(tmp_path, quick=False, data=data), MULTI30K, "Multi30k")
