from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headway.errors import ConfigError
from headway.experiments import corpus as module
from headway.experiments.corpus import (
    MAX_JOINED_SENTENCES,
    experiment_corpus,
    join_groups,
    join_randomly,
    sample_text_pair,
)
from headway.experiments.experiment import Settings

PAIRS = [(f"s{number}", f"t{number}") for number in range(600)]


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


def test_joined_rows_hold_every_sentence_once_in_order() -> None:
    rows = join_randomly(PAIRS, 3, Random(1))
    assert " ".join(source for source, _ in rows).split() == [source for source, _ in PAIRS]
    assert all(source.replace("s", "t") == target for source, target in rows)
    sizes = [len(source.split()) for source, _ in rows]
    assert set(sizes) == {1, 2, 3}
    # Each number of sentences in a row holds about a third of all 600; the standard deviation is near 20.
    assert all(abs(size * sizes.count(size) - 200) < 80 for size in (1, 2, 3))


def test_joined_by_holds_the_same_sentences_at_every_length() -> None:
    assert join_groups(PAIRS[:5], 2) == [("s0 s1", "t0 t1"), ("s2 s3", "t2 t3"), ("s4", "t4")]
    assert join_groups(PAIRS, 1) == PAIRS


def test_the_quick_corpora(tmp_path: Path) -> None:
    plain, rows = experiment_corpus(settings(tmp_path)), experiment_corpus(settings(tmp_path), join=True)
    single, several = (list(each.read_pairs(each.train_name)) for each in (plain, rows))
    assert len(single) > len(several) > len(single) / MAX_JOINED_SENTENCES
    assert plain.test_pairs == rows.test_pairs
    assert experiment_corpus(settings(tmp_path)) == plain  # and nothing is written again
    assert plain.recipe_sections()["data"]["folder"] == str(plain.folder)


def test_another_language_or_other_sources_make_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [experiment_corpus(settings(tmp_path), join=join) for join in (False, True)]
    monkeypatch.setitem(module._NOUNS, "dog", ("chiko", "o"))
    after = [experiment_corpus(settings(tmp_path), join=join) for join in (False, True)]
    for old, new in zip(before, after, strict=True):
        assert new.folder != old.folder
        texts = ["".join(target for _, target in each.read_pairs(each.train_name)) for each in (old, new)]
        assert ["chiko" in text for text in texts] == [False, True]
        assert ["hundo" in text for text in texts] == [True, False]


def test_the_full_form_needs_multi30k(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        with pytest.raises(ConfigError, match="give a folder with multi30k"):
            experiment_corpus(settings(tmp_path, quick=False, data=data))


def test_the_full_form_reads_multi30k(tmp_path: Path) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name, count in (("train", 9), ("val", 2), ("test_2016_flickr", 600)):
        for language in ("de", "en"):
            lines = "".join(f"{language} {number}\n" for number in range(count))
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    found = experiment_corpus(settings(tmp_path / "work", quick=False, data=tmp_path), join=True)
    assert found.test_pairs[:2] == (("de 0", "en 0"), ("de 1", "en 1"))
    assert len(found.test_pairs) == 500
    assert "".join(source for source, _ in found.read_pairs(found.train_name)).count("de") == 9
