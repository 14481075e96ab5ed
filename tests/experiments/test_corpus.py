from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headway.errors import ConfigError
from headway.experiments.corpus import MULTI30K, find_data, made_up_text, pair_files, write_files
from headway.experiments.experiment import Settings


def settings(work: Path, *, quick: bool = True, data: Path | None = None) -> Settings:
    return Settings(quick=quick, seeds=(1,), data_folder=data, work_folder=work, say=lambda _: None)


def test_a_sentence_has_one_verb_and_ends_in_stop() -> None:
    for sentence in made_up_text(50, Random(1)).splitlines():
        words = sentence.split()
        assert sum(word in ("finds", "hears", "likes", "sees") for word in words) == 1
        assert words[-1] == "stop"
        assert 4 <= len(words) <= 6


def test_other_texts_make_another_folder(tmp_path: Path) -> None:
    one, same, other = (write_files({"a.txt": text}, tmp_path, "text") for text in ("x", "x", "y"))
    assert one == same != other
    assert (other / "a.txt").read_text(encoding="utf-8") == "y"


def test_both_languages_of_a_corpus_are_read() -> None:
    keys = pair_files(Path("corpus"))
    assert keys["folder"] == "corpus"
    assert keys["train"] == [{"files": ["train.de", "train.en"]}]
    assert keys["dev"] == {"files": ["val.de", "val.en"]}


def test_the_full_form_needs_multi30k(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(ConfigError, match="give a folder with multi30k"):
            find_data(settings(tmp_path, quick=False, data=data), MULTI30K, "Multi30k")
