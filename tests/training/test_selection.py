"""Which model a translation run selects, and when training has failed."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from listening import Heard

from headway.bundle import read_config
from headway.errors import BundleError, CheckpointError, DataError
from headway.experiments.pool import merge_sections
from headway.tasks import parse_recipe, train
from headway.training import loop
from headway.training.fine_tuning import complete_recipe
from headway.training.loop import Result
from headway.training.recipe import Recipe
from headway.training.snapshot import checkpoint_folders, read_header

TINY = {"preset": "tiny", "d_model": 16, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
WORDS = {"ba": "ab", "de": "ed", "gu": "ug", "lo": "ol"}


def write(folder: Path, name: str, *, words: int, glue: str, seed: int) -> None:
    """Write lines of syllables and the same text backwards, as words that ``glue`` joins."""
    rng = random.Random(seed)
    lines = [rng.choices(sorted(WORDS), k=words) for _ in range(40 if name == "train" else 10)]
    sources = [" ".join(line) for line in lines]
    targets = [glue.join(WORDS[word] for word in reversed(line)) for line in lines]
    (folder / f"{name}.src").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (folder / f"{name}.tgt").write_text("\n".join(targets) + "\n", encoding="utf-8")


def recipe(folder: Path, *changes: dict[str, dict[str, Any]]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "folder": str(folder),
            "train": [{"files": ["train.src", "train.tgt"]}],
            "dev": {"files": ["dev.src", "dev.tgt"]},
            "max_tokens": 100,
        },
        "tokenizer": {"kind": "characters"},
        "model": {**TINY, "encoder_layers": 1, "decoder_layers": 1},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
        "training": {"steps": 1, "precision": "float32", "device": "cpu"},
        "validation": {"every": 2, "metric": "loss"},  # an untrained model translates to very long lines
        "checkpoints": {"every": 2, "average": 0},
    }
    return parse_recipe(merge_sections(sections, *changes), "test")


BLEU = {"validation": {"metric": "bleu"}}


@pytest.fixture
def one_word(tmp_path: Path) -> Path:
    for name, seed in (("train", 1), ("dev", 2)):
        write(tmp_path, name, words=3, glue="", seed=seed)
    return tmp_path


def dev_records(run: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record for record in lines if record["kind"] == "dev"]


def progress(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_header(checkpoint_folders(run / "checkpoints")[0])["progress"]
    return found


def train_in(run: Path, plan: Recipe) -> tuple[Result, list[str]]:
    heard = Heard()
    return train(plan, run, listener=heard), heard.messages


def test_targets_without_four_tokens_are_selected_by_chrf(one_word: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, said = train_in(run, recipe(one_word, BLEU, {"checkpoints": {"keep_best": 1}, "training": {"steps": 4}}))
    assert any("selected by chrF on the development set" in line for line in said)
    scores = [(record["chrF2"], -record["loss"]) for record in dev_records(run)]
    assert {record["BLEU"] for record in dev_records(run)} == {0.0}
    assert (progress(run)["best"], -progress(run)["best_loss"]) == max(scores)
    assert progress(run)["best_metric"] == "chrf2"
    assert progress(run)["best_step"] == 2 * (1 + scores.index(max(scores)))


@pytest.mark.parametrize(("words", "metric"), [(3, "chrf2"), (4, "bleu"), (8, "bleu")])
def test_bleu_selects_if_the_references_have_four_tokens(tmp_path: Path, words: int, metric: str) -> None:
    for name, seed in (("train", 1), ("dev", 2)):
        write(tmp_path, name, words=words, glue=" ", seed=seed)
    train_in(tmp_path / "run", recipe(tmp_path, BLEU))
    assert progress(tmp_path / "run")["best_metric"] == metric


@pytest.mark.parametrize(("metric", "score"), [("chrf", "chrF2"), ("exact_match", "exact match")])
def test_other_metrics_select(one_word: Path, tmp_path: Path, metric: str, score: str) -> None:
    """With exact match, all scores are 0, so that the loss selects the last model and patience does not end."""
    run = tmp_path / "run"
    train_in(
        run, recipe(one_word, {"validation": {"metric": metric, "patience": 1, "every": 1}, "training": {"steps": 3}})
    )
    records = dev_records(run)
    assert all({"BLEU", score} <= record.keys() for record in records)
    scores = [(record[score], -record["loss"]) for record in records]
    assert progress(run)["best"] == max(scores)[0]
    if metric == "exact_match":
        assert {record[score] for record in records} == {0.0}
        losses = [record["loss"] for record in records]
        assert len(records) == next((n for n in (1, 2) if losses[n] >= losses[n - 1]), 2) + 1


def test_a_run_of_an_older_version_goes_on_with_its_metric_and_tokenization(one_word: Path, tmp_path: Path) -> None:
    """Its best score was BLEU with 13a, although the references are short and Chinese has another tokenization."""
    run, chinese = tmp_path / "run", {**BLEU, "task": {"target_language": "zh"}}
    train_in(run, recipe(one_word, chinese))
    assert "tok:zh" in dev_records(run)[0]["BLEU signature"]
    recipe_file = run / "recipe.toml"
    text = recipe_file.read_text(encoding="utf-8")
    assert 'tokenization = "zh"' in text
    recipe_file.write_text(text.replace('tokenization = "zh"\n', ""), encoding="utf-8")
    (state_file,) = checkpoint_folders(run / "checkpoints")[0].glob("state.json")
    state = json.loads(state_file.read_text(encoding="utf-8"))
    for name in ("best_metric", "best_loss", "first_loss", "train_loss", "dev_loss"):
        state["progress"].pop(name)
    state["progress"]["best"] = 100.0
    state.pop("checksum")
    state_file.write_text(json.dumps(state), encoding="utf-8")
    _, said = train_in(run, recipe(one_word, chinese, {"training": {"steps": 2}}))
    assert not any("chrF" in line for line in said)
    assert "tok:13a" in dev_records(run)[-1]["BLEU signature"]
    assert (progress(run)["best"], progress(run)["stale"]) == (100.0, 1)


def test_a_run_keeps_its_tokenization_and_a_user_can_choose_it(one_word: Path, tmp_path: Path) -> None:
    def chosen(**validation: str) -> str:
        plan = recipe(one_word, {"task": {"target_language": "zh"}, "validation": validation})
        return complete_recipe(plan, tmp_path / "run").validation.model_dump()["tokenization"]  # type: ignore[no-any-return]

    assert (chosen(), chosen(tokenization="char")) == ("zh", "char")
    train_in(tmp_path / "run", recipe(one_word, {"validation": {"tokenization": "char"}}))
    assert chosen() == "char"


def test_the_language_of_the_development_set_decides(one_word: Path, tmp_path: Path) -> None:
    files = {"files": ["train.src", "train.tgt"]}
    data = {
        "train": [{**files, "target_language": "th"}, {**files, "target_language": "de"}],
        "dev": {"files": ["dev.src", "dev.tgt"], "target_language": "th"},
    }
    plan = complete_recipe(recipe(one_word, {"data": data}), tmp_path / "run")
    assert plan.validation.model_dump()["tokenization"] == "char"


@pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
class TestDivergence:
    def test_a_loss_above_that_of_the_first_step(self, one_word: Path, tmp_path: Path) -> None:
        result, _ = train_in(
            tmp_path / "run", recipe(one_word, {"optimizer": {"learning_rate": 3.0}, "training": {"steps": 6}})
        )
        assert result.diverged
        assert "above the loss of the first step" in str(result.divergence)
        assert "Lower optimizer.learning_rate (3)" in str(result.divergence)
        again, _ = train_in(
            tmp_path / "run", recipe(one_word, {"optimizer": {"learning_rate": 3.0}, "training": {"steps": 6}})
        )
        assert again.divergence == result.divergence

    def test_without_a_development_set(self, one_word: Path, tmp_path: Path) -> None:
        plan = recipe(one_word, {"optimizer": {"learning_rate": 3.0}, "training": {"steps": 6}})
        plan = plan.model_copy(update={"data": plan.data.model_copy(update={"dev": None})})
        result, _ = train_in(tmp_path / "run", plan)
        assert "the last training loss" in str(result.divergence)

    def test_a_model_that_knows_less_than_frequencies(self, one_word: Path, tmp_path: Path) -> None:
        result, said = train_in(tmp_path / "run", recipe(one_word, {"optimizer": {"learning_rate": 1e-7}}))
        assert not result.diverged
        assert sum("above the entropy of the targets" in line for line in said) == 1

    def test_a_model_that_learns(self, one_word: Path, tmp_path: Path) -> None:
        result, said = train_in(
            tmp_path / "run", recipe(one_word, {"training": {"steps": 30}, "validation": {"every": 30}})
        )
        assert not result.diverged
        assert not any("entropy" in line for line in said)


class TestDevelopmentSet:
    def test_what_is_also_in_the_training_text_is_counted(self, one_word: Path, tmp_path: Path) -> None:
        for side in ("src", "tgt"):
            lines = (one_word / f"train.{side}").read_text().splitlines()
            (one_word / f"dev.{side}").write_text("\n".join([*lines[:10], *["new line"] * 30]) + "\n")
        for _ in range(2):  # said again when the run resumes
            _, said = train_in(tmp_path / "run", recipe(one_word))
            assert (
                sum("10 of 40 development examples (25.0%) are also in the training text" in line for line in said) == 1
            )

    @pytest.mark.parametrize("name", ["dev", "train"])
    @pytest.mark.parametrize("starts", [False, True])
    def test_a_change_ends_a_run_that_has_begun(self, one_word: Path, tmp_path: Path, name: str, starts: bool) -> None:
        start: dict[str, dict[str, Any]] = {"training": {"steps": 1}}
        if starts:
            train_in(tmp_path / "start", recipe(one_word, start))
            start["training"]["start_from"] = str(tmp_path / "start" / "best")
        train_in(tmp_path / "run", recipe(one_word, start))
        write(one_word, name, words=3, glue="", seed=9)
        start["training"]["steps"] = 2
        with pytest.raises(CheckpointError, match=f"the content of {name}.(src|tgt) has changed"):
            train_in(tmp_path / "run", recipe(one_word, start))

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("dev.csv", "source,target\n", "dev.csv contains no example"),
            ("dev.tsv", "a\tb\n\0\tc\n", "looks binary"),
            ("missing.tsv", None, "missing.tsv: no such file"),
        ],
    )
    def test_a_bad_one_is_refused_before_any_work(
        self, one_word: Path, tmp_path: Path, file: str, content: str | None, message: str
    ) -> None:
        if content is not None:
            (one_word / file).write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            train_in(tmp_path / "run", recipe(one_word, {"data": {"dev": {"files": [file]}}}))
        assert not (tmp_path / "run" / "tokenizer").exists()

    def test_unequal_sides_are_refused_before_any_work(self, one_word: Path, tmp_path: Path) -> None:
        (one_word / "dev.tgt").write_text("ab\n", encoding="utf-8")
        with pytest.raises(DataError, match="has 1 line"):
            train_in(tmp_path / "run", recipe(one_word))
        assert not (tmp_path / "run" / "tokenizer").exists()


def test_bad_lines_are_skipped_on_both_sides_and_counted(one_word: Path, tmp_path: Path) -> None:
    for name in ("train", "dev"):
        lines = (one_word / f"{name}.src").read_bytes().splitlines()
        (one_word / f"{name}.src").write_bytes(b"\n".join([b"b\0a", b"b\xff", *lines[2:]]) + b"\n")
    with pytest.raises(DataError, match=r"2 lines cannot be read(.|\n)*data.on_error = 'skip'"):
        train_in(tmp_path / "refused", recipe(one_word))
    skipping = recipe(one_word, {"data": {"on_error": "skip"}})
    _, said = train_in(tmp_path / "run", skipping)
    assert any("38 of 40 examples kept" in line and "2 unreadable" in line for line in said)
    with pytest.raises(CheckpointError, match=r"data\.on_error was 'skip', is 'refuse'"):
        train_in(tmp_path / "run", recipe(one_word, {"training": {"steps": 2}}))


def test_a_missing_tokenizer_of_a_begun_run_is_named(one_word: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "run", recipe(one_word))
    shutil.rmtree(tmp_path / "run" / "tokenizer")
    with pytest.raises(CheckpointError, match="tokenizer: missing, although training has already started with it"):
        train_in(tmp_path / "run", recipe(one_word, {"training": {"steps": 2}}))


def test_a_vocabulary_that_is_smaller_than_asked_for_is_said(one_word: Path, tmp_path: Path) -> None:
    plan = recipe(one_word, {"tokenizer": {"kind": "bpe", "vocab_size": 2_000_000}})
    _, said = train_in(tmp_path / "run", plan)
    assert sum("instead of tokenizer.vocab_size = 2,000,000" in line for line in said) == 1


def test_a_run_folder_leads_to_the_model_that_training_named(one_word: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result, _ = train_in(run, recipe(one_word, {"training": {"steps": 2}, "checkpoints": {"average": 2, "every": 1}}))
    with pytest.raises(BundleError, match=re.escape(f"did you mean {result.model_folder}?")):
        read_config(run)
    for chosen in ("best", "average"):
        (run / "chosen_model").write_text(chosen, encoding="utf-8")
        with pytest.raises(BundleError, match=re.escape(f"did you mean {run / chosen}?")):
            read_config(run)
    checkpoint = checkpoint_folders(run / "checkpoints")[0]
    with pytest.raises(BundleError, match=rf"it is a training checkpoint.*headway average {run} --last 1"):
        read_config(checkpoint)


def test_long_first_steps_are_followed_by_the_time_left(
    one_word: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(Heard):
        def on_time_estimate(self, step: int, total_steps: int, seconds_left: float) -> None:
            self.messages.append(f"{step} of {total_steps}")
            assert seconds_left > 0

    monkeypatch.setattr(loop, "_LONG_WAIT_S", 0.0)
    heard = Waiting()
    train(recipe(one_word, {"training": {"steps": 4}}), tmp_path / "run", listener=heard)
    assert heard.messages.count("3 of 4") == 1
    train(
        recipe(one_word, {"training": {"log_every": 2, "steps": 4}}), tmp_path / "other", listener=(heard := Waiting())
    )
    assert not any(message.endswith("of 4") for message in heard.messages)
