"""Distillation: the student's corpora contain the teacher's translations, and nothing is translated twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from headway import distillation as module
from headway.bundle import Bundle, TaskConfig
from headway.data.readers import read_examples
from headway.data.store import fingerprint
from headway.decode.request import DecodingOptions
from headway.distillation import distill
from headway.errors import BundleError, CheckpointError, ConfigError, DataError
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Translation, Translator, load_translator
from headway.tasks import parse_recipe
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.recipe import Recipe
from headway.training.report import Listener

SOURCES = ["eins zwei", "drei", "vier fünf sechs", "drei", "zwei eins", "sechs", "", "fünf"]
TARGETS = ["one two", "three", "four five six", "three!", "two one", "six", "nothing", "five"]
DEV = [("eins", "one"), ("zwei", "two")]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight aligned pairs, three pairs in the middle columns of a table, and a development set."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_lines(folder / "train.de", SOURCES)
    write_lines(folder / "train.en", TARGETS)
    write_lines(folder / "more.tsv", [f"x\t{text}\t{text[::-1]}" for text in ("eins", "sechs drei", "vier")])
    write_lines(folder / "dev.tsv", ["\t".join(pair) for pair in DEV])
    return folder


def recipe(folder: Path, **sections: dict[str, Any]) -> Recipe:
    corpora = [
        {"files": ["train.de", "train.en"], "weight": 2.0},
        {"files": ["more.tsv"], "fields": ["2", "3"], "weight": 0.5},
    ]
    sections["data"] = {
        "folder": str(folder),
        "train": corpora,
        "dev": {"files": ["dev.tsv"]},
        **sections.get("data", {}),
    }
    task = {"source_language": "de", "target_language": "en"}
    return parse_recipe(
        {"task": task, "tokenizer": {"kind": "whitespace"}, "training": {"device": "cpu"}, **sections}, "test"
    )


def tagged(folder: Path, *languages: str) -> Recipe:
    """A recipe that has the first corpus once for each language."""
    corpora = [{"files": ["train.de", "train.en"], "target_language": language} for language in languages]
    dev = {"files": ["dev.tsv"], "target_language": languages[0]}
    return recipe(folder, data={"train": corpora, "dev": dev})


def save_teacher(folder: Path, seed: int = 0, tags: Sequence[str] = (), **changes: Any) -> Path:
    """Save a model with random weights whose translations differ between sources. Eight positions keep them short."""
    words = sorted({word for text in SOURCES for word in text.split()})
    tokenizer = Tokenizer.train(words * 2, TokenizerConfig.parse({"kind": "whitespace"}, "test"), tags=tags)
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig.parse(
        {**sizes, "tie": "none", "positions": "learned", "max_length": 8, **changes}, "test"
    )
    model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
    with torch.no_grad():
        model.projection.weight.mul_(4.0)
    Bundle(TaskConfig(source_language="de", target_language="en"), model, tokenizer, tokenizer).save(folder, "# Card")
    return folder


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return save_teacher(tmp_path / "teacher")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks of the first corpus, two of the second."""
    monkeypatch.setattr(module, "_CHUNK_PAIRS", 2)


class Asked(list[str]):
    """Records the texts that teachers translate. After ``limit`` texts, the user presses Ctrl-C."""

    limit = 1000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    texts = Asked()
    translate = Translator.translate

    def observed(self: Translator, text: list[str], options: DecodingOptions, **keywords: Any) -> list[Translation]:
        assert not text or not keywords["protect"]  # the student learns from the model's own translations
        texts.extend(text)
        if len(texts) > texts.limit:
            raise KeyboardInterrupt
        return translate(self, text, options, **keywords)

    monkeypatch.setattr(Translator, "translate", observed)
    return texts


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files but those of jobs, which record who has worked on them."""
    files = (path for path in folder.rglob("*") if path.is_file() and "jobs" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def results(folder: Path) -> list[Path]:
    """Return the files with the translations of chunks."""
    return sorted((folder / "distilled").glob("jobs/*/plan/results/*/*"))


class TestDistilledCorpora:
    def test_targets_are_the_teachers_translations_in_order(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        distill(teacher, recipe(data), tmp_path / "run", beam_size=2)
        rows = read(tmp_path / "run" / "distilled" / "train-0.jsonl")
        assert [(row["source"], row["original"]) for row in rows] == list(zip(SOURCES, TARGETS, strict=True))
        model = load_translator(teacher, device="cpu", precision="float32")
        expected = [model.translate(source, DecodingOptions(beam_size=2)).text for source in SOURCES]
        assert [row["target"] for row in rows] == expected
        assert len(set(expected)) > 3  # or order would not matter

    def test_the_students_recipe_differs_only_in_its_files(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        before = recipe(data)
        after = distill(teacher, before, tmp_path / "run")
        home = tmp_path / "run" / "distilled"
        assert [corpus.as_dict() for corpus in after.data.train] == [
            {"files": ["train-0.jsonl"], "fields": ["source", "target"], "weight": 2.0},
            {"files": ["train-1.jsonl"], "fields": ["source", "target"], "weight": 0.5},
        ]
        assert after.data.folder == str(home)
        assert after.data.dev is not None
        assert [(row["source"], row["target"]) for row in read(home / after.data.dev.files[0])] == DEV
        kept = {"train", "dev", "folder"}
        assert after.model_copy(update={"data": None}) == before.model_copy(update={"data": None})
        assert after.data.model_dump(exclude=kept) == before.data.model_dump(exclude=kept)
        assert parse_recipe(after.as_dict(), "again") == after

    def test_original_pairs_are_kept_on_request(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        """Training reads the original pairs exactly as it would without distillation."""
        plain = recipe(data)
        student = distill(teacher, plain, tmp_path / "run", keep_original=True)
        assert [corpus.weight for corpus in student.data.train] == [2.0, 0.5, 2.0, 0.5]
        home = Path(student.data.folder)
        for number, corpus in enumerate(plain.data.train):
            pairs = list(read_examples(corpus, data))
            assert list(read_examples(student.data.train[2 + number], home)) == pairs
            distilled = list(read_examples(student.data.train[number], home))
            assert [source for source, _ in distilled] == [source for source, _ in pairs]
            assert distilled != pairs

    def test_the_teacher_is_recorded(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        distill(teacher, recipe(data), tmp_path / "run", beam_size=3)
        about = json.loads((tmp_path / "run" / "distilled" / "teacher.json").read_text())
        assert (about["teacher"], about["beam_size"]) == (str(teacher), 3)
        assert [corpus["files"] for corpus in about["corpora"]] == [["train.de", "train.en"], ["more.tsv"]]

    @pytest.mark.parametrize("reason", ["filter", "positions"])
    def test_sources_that_are_too_long_get_an_empty_target(
        self, data: Path, tmp_path: Path, reason: str, asked: Asked
    ) -> None:
        """Three tokens exceed a filter of 2, and three learned positions, one of which the end symbol takes."""
        limits = {"filter": {"max_length": 2}} if reason == "filter" else {}
        teacher = save_teacher(tmp_path / "teacher", max_length=8 if reason == "filter" else 3)
        distill(teacher, recipe(data, data=limits), tmp_path / "run")
        rows = read(tmp_path / "run" / "distilled" / "train-0.jsonl")
        empty = [row["source"] for row in rows if not row["target"]]
        assert set(empty) == {"vier fünf sechs", ""}
        assert "vier fünf sechs" not in asked
        assert {"eins zwei", "drei"} <= set(asked)


class TestSeveralTargetLanguages:
    def test_each_corpus_is_translated_into_its_own_language(self, data: Path, tmp_path: Path) -> None:
        teacher = save_teacher(tmp_path / "teacher", tags=["<2en>", "<2fr>"])
        student = distill(teacher, tagged(data, "en", "fr"), tmp_path / "run")
        assert [corpus.target_language for corpus in student.data.train] == ["en", "fr"]
        assert student.data.dev is not None
        assert student.data.dev.target_language == "en"
        model = load_translator(teacher, device="cpu", precision="float32")
        found = {}
        for number, language in enumerate(["en", "fr"]):
            rows = read(tmp_path / "run" / "distilled" / f"train-{number}.jsonl")
            found[language] = [row["target"] for row in rows]
            assert found[language] == [model.translate(text, target_language=language).text for text in SOURCES]
        assert found["en"] != found["fr"]

    def test_corpora_without_tags_use_the_tasks_language(self, data: Path, tmp_path: Path) -> None:
        teacher = save_teacher(tmp_path / "teacher", tags=["<2en>", "<2fr>"])
        distill(teacher, recipe(data), tmp_path / "run")
        rows = read(tmp_path / "run" / "distilled" / "train-0.jsonl")
        model = load_translator(teacher, device="cpu", precision="float32")
        assert rows[0]["target"] == model.translate([SOURCES[0]], target_language="en")[0].text

    def test_a_teacher_of_one_language_ignores_the_corpus_tag(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        distill(teacher, recipe(data), tmp_path / "plain")
        distill(teacher, tagged(data, "en"), tmp_path / "tagged")
        name = "distilled/train-0.jsonl"
        assert (tmp_path / "tagged" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()

    def test_a_tag_takes_one_of_the_positions(self, data: Path, tmp_path: Path, asked: Asked) -> None:
        """Four positions suffice for three tokens and the end symbol, or for two tokens, the end symbol and a tag."""
        teacher = save_teacher(tmp_path / "teacher", tags=["<2en>"], max_length=4)
        distill(teacher, tagged(data, "en"), tmp_path / "run")
        assert "vier fünf sechs" not in asked
        assert "eins zwei" in asked
        teacher = save_teacher(tmp_path / "untagged", max_length=4)
        distill(teacher, recipe(data), tmp_path / "untagged-run")
        assert "vier fünf sechs" in asked


class TestNothingIsTranslatedTwice:
    def test_by_a_second_call(self, data: Path, teacher: Path, tmp_path: Path, asked: Asked) -> None:
        first = distill(teacher, recipe(data), tmp_path / "run")
        before = contents(tmp_path / "run")
        assert len(asked) == len(SOURCES) + 3
        assert distill(teacher, recipe(data), tmp_path / "run", keep_original=True) != first
        assert contents(tmp_path / "run") == before
        assert len(asked) == len(SOURCES) + 3

    def test_if_a_text_is_repeated(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_CHUNK_PAIRS", 100)
        distill(teacher, recipe(data), tmp_path / "run")
        assert asked[: len(set(SOURCES))] == list(dict.fromkeys(SOURCES))
        rows = read(tmp_path / "run" / "distilled" / "train-0.jsonl")
        assert rows[1]["target"] == rows[3]["target"]
        assert rows[1]["original"] != rows[3]["original"]

    @pytest.mark.slow_but_every(3)
    @pytest.mark.parametrize("limit", range(0, 11, 2))
    def test_after_an_interruption(self, data: Path, teacher: Path, tmp_path: Path, asked: Asked, limit: int) -> None:
        """The chunk that was in progress is translated again; finished chunks are not."""
        asked.limit = limit
        with pytest.raises(KeyboardInterrupt):
            distill(teacher, recipe(data), tmp_path / "run")
        assert not list((tmp_path / "run").glob("distilled/train-*"))
        assert len(results(tmp_path / "run")) == limit // 2
        asked.clear()
        asked.limit = 1000
        distill(teacher, recipe(data), tmp_path / "run")
        assert len(asked) == len(SOURCES) + 3 - limit
        distill(teacher, recipe(data), tmp_path / "whole")
        assert contents(tmp_path / "run") == contents(tmp_path / "whole")


class TestNothingIsStale:
    def test_a_changed_line_invalidates_its_chunk(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked
    ) -> None:
        distill(teacher, recipe(data), tmp_path / "run")
        write_lines(data / "train.de", [*SOURCES[:4], "zwei", *SOURCES[5:]])
        asked.clear()
        distill(teacher, recipe(data), tmp_path / "run")
        assert asked == ["zwei", "sechs"]
        assert read(tmp_path / "run" / "distilled" / "train-0.jsonl")[4]["source"] == "zwei"

    def test_another_teacher_or_beam_size_invalidates_all_chunks(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked
    ) -> None:
        distill(teacher, recipe(data), tmp_path / "run")
        everything = len(asked)
        jobs = tmp_path / "run" / "distilled" / "jobs"
        for number, beam_size in ((0, 1), (1, 1)):
            before = set(jobs.iterdir())
            asked.clear()
            distill(save_teacher(tmp_path / "teacher", number), recipe(data), tmp_path / "run", beam_size=beam_size)
            assert len(asked) == everything
            assert not before & set(jobs.iterdir())

    def test_other_files_of_the_teacher_invalidate_nothing(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked
    ) -> None:
        distill(teacher, recipe(data), tmp_path / "run")
        (teacher / "README.md").write_text("# Another card")
        (teacher / "notes.txt").write_text("mine")
        asked.clear()
        distill(teacher, recipe(data), tmp_path / "run")
        assert asked == []

    @pytest.mark.parametrize("damage", ["[", "{}", '["one", "two", "too many"]'])
    def test_a_damaged_chunk_is_translated_again(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked, damage: str
    ) -> None:
        distill(teacher, recipe(data), tmp_path / "run")
        whole = contents(tmp_path / "run")
        results(tmp_path / "run")[0].write_text(damage)
        asked.clear()
        distill(teacher, recipe(data), tmp_path / "run")
        assert 1 <= len(asked) <= 2
        assert contents(tmp_path / "run") == whole


def test_translations_of_an_older_version_are_used(data: Path, teacher: Path, tmp_path: Path, asked: Asked) -> None:
    """They are in a file for each chunk, whose name is a hash of the teacher's files, the options and the sources."""
    distill(teacher, recipe(data), tmp_path / "run")
    home = tmp_path / "run" / "distilled"
    whole, key = contents(home), json.loads((home / "teacher.json").read_text())["fingerprint"]
    (home / "pieces").mkdir()
    for number in (0, 1):
        rows = read(home / f"train-{number}.jsonl")
        for chunk in (rows[start : start + 2] for start in range(0, len(rows), 2)):
            name = fingerprint(key, 4, recipe(data).data.filter.max_length, None, [row["source"] for row in chunk])
            (home / "pieces" / f"{name}.json").write_text(json.dumps([row["target"] for row in chunk]))
    shutil.rmtree(home / "jobs")
    (tmp_path / "run" / "checkpoints" / "step-1").mkdir(parents=True)
    asked.clear()
    distill(teacher, recipe(data), tmp_path / "run")
    assert asked == []
    assert contents(home) == whole


class TestRefusals:
    @pytest.mark.parametrize("path", ["gone", "data"])
    def test_no_teacher(self, data: Path, tmp_path: Path, path: str) -> None:
        with pytest.raises(BundleError, match=rf"{path}: (no such folder|not a model folder)"):
            distill(tmp_path / path, recipe(data), tmp_path / "run")

    def test_other_languages(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        task = {"source_language": "en", "target_language": "de"}
        message = r"teacher translates de to en, but .* asks for en to de \(train\.de .*teacher, .*_language = 'de'"
        with pytest.raises(ConfigError, match=message):
            distill(teacher, recipe(data, task=task), tmp_path / "run")
        message = r"teacher translates de to en, but the recipe asks for de to fr \(train\.de \+ train\.en\)"
        with pytest.raises(ConfigError, match=message):
            distill(teacher, tagged(data, "fr"), tmp_path / "run")

    def test_a_language_that_the_teacher_was_not_trained_for(self, data: Path, tmp_path: Path) -> None:
        teacher = save_teacher(tmp_path / "teacher", tags=["<2en>", "<2fr>"])
        with pytest.raises(ConfigError, match=r"one must be selected: got 'es'; choose one of en, fr"):
            distill(teacher, tagged(data, "es"), tmp_path / "run")

    def test_a_beam_of_zero(self, data: Path, teacher: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"options: beam_size = 0: .*greater than or equal to 1"):
            distill(teacher, recipe(data), tmp_path / "run", beam_size=0)

    def test_a_malformed_line_before_any_translation(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked
    ) -> None:
        for name, message in (("more.tsv", r"more\.tsv, line 4: 1 column"), ("dev.tsv", r"dev\.tsv, line 3: 1 column")):
            good = (data / name).read_text(encoding="utf-8")
            (data / name).write_text(good + "alone\n", encoding="utf-8")
            with pytest.raises(DataError, match=message):
                distill(teacher, recipe(data), tmp_path / "run")
            (data / name).write_text(good, encoding="utf-8")
        assert asked == []

    def test_other_translations_than_the_student_was_trained_on(
        self, data: Path, teacher: Path, tmp_path: Path, asked: Asked
    ) -> None:
        distill(teacher, recipe(data), tmp_path / "run")
        before = contents(tmp_path / "run")
        (tmp_path / "run" / "checkpoints" / "step-1").mkdir(parents=True)
        asked.clear()
        with pytest.raises(CheckpointError, match=r"on the translations .*teacher with beam size 2 .*--fresh"):
            distill(teacher, recipe(data), tmp_path / "run", beam_size=2)
        assert contents(tmp_path / "run") == before
        distill(teacher, recipe(data), tmp_path / "run")
        assert asked == []


def test_progress_is_reported_every_30_seconds_and_at_the_end(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk takes 20 s here."""
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("headway.distillation.time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    class Recorder(Listener):
        said: ClassVar[list[str]] = []
        worked: ClassVar[list[int]] = []

        def on_message(self, message: str) -> None:
            self.said.append(message)

        def on_activity_progress(self, what: str, done: int) -> None:
            assert what == "sources translated"
            self.worked.append(done)

    distill(teacher, recipe(data), tmp_path / "run", listener=Recorder())
    assert Recorder.worked == [2, 4, 6, 8, 10, 11]
    assert Recorder.said == [
        f"11 sources to translate with {teacher}, beam 4",
        "translated 4 of 11 sources, 0/s  ETA 0:01:10",  # 4 in 40 s: 7 more need 70 s
        "translated 8 of 11 sources, 0/s  ETA 0:00:30",  # 8 in 80 s
        "translated 11 of 11 sources, 0/s  ETA 0:00:00",
    ]
