"""The commands, run by the function that the shell calls: their output, exit codes and errors."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer
from command_line import Ended, assert_refused, run, write_lines

import headway
from headway.bundle import Bundle
from headway.cli import COMMANDS, app
from headway.config import to_toml
from headway.decode.request import DecodingOptions
from headway.models.registry import build_model
from headway.predict import load_translator

COMMANDS_PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
LINES = ["der Hund", "die Katze", "der Hund sieht die Katze", "die Katze sieht der Hund", "der Hund schläft"] * 4
TARGETS = ["the dog", "the cat", "the dog sees the cat", "the cat sees the dog", "the dog sleeps"] * 4


def write_recipe(folder: Path, data: Path) -> Path:
    """A recipe that trains a tiny model for six steps, in seconds."""
    recipe = {
        "task": {"source_language": "de", "target_language": "en"},
        "data": {
            "folder": str(data),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 200,
        },
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1},
        "optimizer": {"warmup_steps": 2},
        "training": {"steps": 6, "log_every": 2, "precision": "float32", "device": "cpu"},
        "validation": {"every": 6},
        "checkpoints": {"every": 2, "keep": 3, "average": 2},
    }
    path = folder / "tiny.toml"
    path.write_text(to_toml(recipe), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, count in (("train", 20), ("dev", 3)):
        write_lines(folder / f"{split}.de", LINES[:count])
        write_lines(folder / f"{split}.en", TARGETS[:count])
    return folder


@dataclass(frozen=True)
class Trained:
    """A finished run, and the result of the command that trained it."""

    recipe: Path
    folder: Path
    ended: Ended

    @property
    def model(self) -> Path:
        return self.folder / "average"


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    recipe = write_recipe(folder, data)
    return Trained(recipe, folder / "run", run("train", recipe, "--run", folder / "run"))


@pytest.fixture(scope="module")
def limited(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with learned positions for ten tokens."""
    bundle = Bundle.load(trained.model)
    config = bundle.model.config.model_copy(update={"positions": "learned", "max_length": 10})
    size = bundle.source_tokenizer.vocab_size
    folder = tmp_path_factory.mktemp("limited") / "model"
    Bundle(bundle.task, build_model(config, size, size), bundle.source_tokenizer, bundle.target_tokenizer).save(
        folder, "# Card"
    )
    return folder


@contextmanager
def disk_full(limit: int) -> Iterator[None]:
    """The operating system refuses to let any file grow past ``limit`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_version_is_printed() -> None:
    ended = run("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"headway {headway.__version__}\n", "")


class TestHelp:
    def test_lists_the_commands_of_the_page_on_commands_in_its_groups(self) -> None:
        sections = re.split(r"^## (.+)$", COMMANDS_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        documented = {
            heading: set(re.findall(r"^\| `headway ([\w-]+)", rows, re.MULTILINE))
            for heading, rows in zip(sections[::2], sections[1::2], strict=True)
        }
        panels = re.split(r"^╭─ (.+?) ─+╮$", run("--help").out, flags=re.MULTILINE)[3:]  # after the panel of options
        shown = {
            heading: set(re.findall(r"^│ ([\w-]+) ", rows, re.MULTILINE))
            for heading, rows in zip(panels[::2], panels[1::2], strict=True)
        }
        assert list(shown.items()) == list(documented.items()), "docs/commands.md has a row for each command"
        assert set().union(*shown.values()) == {command.split()[0] for command in COMMANDS}

    @pytest.mark.parametrize("command", COMMANDS)
    def test_each_command_explains_itself(self, command: str) -> None:
        *group, name = command.split()
        ended = run(*group, name, "-h")
        assert ended.code == 0
        of = next(entry.typer_instance for entry in app.registered_groups if entry.name == group[0]) if group else app
        assert of
        callback = next(entry.callback for entry in of.registered_commands if entry.name == name)
        assert callback
        assert callback.__doc__
        assert " ".join(callback.__doc__.split()[:4]) in " ".join(ended.out.split())

    def test_defaults_of_decoding_are_readable(self) -> None:
        """They are values as a user gives them, such as 4, not Python's way of writing them, such as (4) or None."""
        shown = " ".join(re.sub("[│╭╮╰╯─]", " ", run("translate", "-h").out).split())
        assert "[default: (" not in shown
        assert "None" not in shown
        assert "Default: 4." in shown

    def test_a_mistyped_command(self) -> None:
        ended = run("trian")
        assert ended.code == 2
        assert ended.out == ""
        assert "trian" in ended.err

    def test_python_m_headway_is_the_command(self) -> None:
        done = subprocess.run([sys.executable, "-m", "headway", "--help"], capture_output=True, text=True, check=True)
        assert "headway" in done.stdout
        assert "translate" in done.stdout


class TestTrain:
    @pytest.mark.slow
    def test_reports_on_standard_error_and_ends_with_the_next_command(self, trained: Trained) -> None:
        ended = trained.ended
        assert ended.code == 0, ended.err
        assert ended.out == ""
        assert "train.de + train.en: 20 of 20 examples kept" in ended.err
        assert re.search(r"20 examples, \d+ batches .*at most 200 tokens.* \d+\.\d% padding", ended.err)
        assert re.findall(r"^step (\d)/6 .*loss [\d.]+ .*tokens/s .*lr .*elapsed", ended.err, re.MULTILINE) == list(
            "246"
        )
        assert re.search(r"^step 4/6 .*ETA 0:00:\d\d$", ended.err, re.MULTILINE)
        assert re.search(r"^dev after step 6: loss [\d.]+ .*BLEU [\d.]+$", ended.err, re.MULTILINE)
        chosen = trained.folder / (trained.folder / "chosen_model").read_text(encoding="utf-8").strip()
        assert ended.err.endswith(f"translate with: headway translate {chosen}\n")

    def test_the_run_folder(self, trained: Trained) -> None:
        names = {path.name for path in trained.folder.iterdir()}
        assert names == {
            "recipe.toml",
            "environment.json",
            "lock",
            "lock.pid",
            "metrics.jsonl",
            "tensorboard",
            "tokenizer",
            "tokens",
            "checkpoints",
            "best",
            "average",
            "chosen_model",
        }
        card = (trained.model / "README.md").read_text(encoding="utf-8")
        assert "BLEU" in card
        assert "version:" in card  # of sacreBLEU, in the signature
        assert 'source_language = "de"' in card

    def test_the_same_command_again_and_a_longer_run(self, trained: Trained, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        shutil.copytree(trained.folder, folder)
        again = run("train", trained.recipe, "--run", folder)
        assert again.code == 0
        assert "resuming after step 6" in again.err
        assert "step 6/6" not in again.err
        longer = run("train", trained.recipe, "--run", folder, "--set", "training.steps=8")
        assert longer.code == 0
        assert re.findall(r"^step (\d)/8", longer.err, re.MULTILINE) == ["8"]

    def test_fresh_keeps_the_earlier_run_aside(self, trained: Trained, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        shutil.copytree(trained.folder, folder)
        for number in (1, 2):
            ended = run("train", trained.recipe, "--run", folder, "--fresh", "--set", "training.steps=2")
            assert ended.code == 0
            assert f"the earlier run is now {folder}.{number}" in ended.err
        assert (tmp_path / "run.1" / "checkpoints" / "step-6").is_dir()
        assert (tmp_path / "run.2" / "checkpoints" / "step-2").is_dir()

    def test_a_fresh_run_that_cannot_begin_leaves_the_earlier_one(self, trained: Trained, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        shutil.copytree(trained.folder, folder)
        ended = run("train", trained.recipe, "--run", folder, "--fresh", "--set", f"data.folder={tmp_path / 'gone'}")
        assert ended.code == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
        assert (folder / "checkpoints" / "step-6").is_dir()

    def test_the_run_folder_has_the_recipes_name(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("train", write_recipe(tmp_path, data), "--set", "training.steps=1").code == 0
        assert (tmp_path / "runs" / "tiny" / "recipe.toml").is_file()


class TestTranslate:
    def test_standard_input_to_standard_output(self, trained: Trained) -> None:
        expected = [found.text for found in load_translator(trained.model).translate(LINES[:5])]
        ended = run("translate", trained.model, stdin="\n".join(LINES[:5]).encode())
        assert ended.code == 0
        assert ended.out == "".join(re.sub("[\r\n]", " ", text) + "\n" for text in expected)

    def test_files(self, trained: Trained, tmp_path: Path) -> None:
        source = write_lines(tmp_path / "in.txt", LINES[:5])
        ended = run("translate", trained.model, "-i", source, "-o", tmp_path / "new" / "out.txt", "--beam-size", 1)
        assert (ended.code, ended.out) == (0, "")
        piped = run("translate", trained.model, "--beam-size", 1, stdin=source.read_bytes())
        assert (tmp_path / "new" / "out.txt").read_text(encoding="utf-8") == piped.out

    def test_an_empty_line_stays_one_and_counts_match(self, trained: Trained) -> None:
        """Also at both ends, with Windows line endings, and at characters that other tools treat as line endings."""
        stdin = "\r\n\nder Hund\r\n \nEin\x85zwei\u2028drei\x0c\n\n".encode()
        ended = run("translate", trained.model, stdin=stdin)
        lines = ended.out.removesuffix("\n").split("\n")
        assert len(lines) == 6
        assert [number for number, line in enumerate(lines) if not line] == [0, 1, 3, 5]
        assert ended.code == 0

    def test_no_input_no_output(self, trained: Trained) -> None:
        assert run("translate", trained.model, stdin=b"") == Ended(0, "", "")

    def test_a_byte_order_mark_is_no_text(self, trained: Trained, tmp_path: Path) -> None:
        plain = run("translate", trained.model, stdin=b"der Hund\n")
        assert run("translate", trained.model, stdin="\ufeffder Hund\n".encode()) == plain
        (tmp_path / "in.txt").write_text("\ufeffder Hund\n", encoding="utf-8")
        assert run("translate", trained.model, "-i", tmp_path / "in.txt") == plain

    def test_a_text_on_the_command_line(self, trained: Trained) -> None:
        piped = run("translate", trained.model, stdin=b"der Hund\n")
        assert run("translate", trained.model, "der Hund").out == piped.out
        assert_refused(run("translate", trained.model, "der Hund", "-i", "x"), "use one of them")

    def test_a_dash_is_standard_input_and_output(self, trained: Trained) -> None:
        piped = run("translate", trained.model, stdin=b"der Hund\n")
        assert run("translate", trained.model, "-i", "-", "-o", "-", stdin=b"der Hund\n").out == piped.out

    def test_n_best(self, trained: Trained) -> None:
        ended = run("translate", trained.model, "--n-best", 3, stdin=b"der Hund\ndie Katze\n")
        rows = [line.split("\t", 2) for line in ended.out.removesuffix("\n").split("\n")]
        assert [number for number, _, _ in rows] == ["1"] * 3 + ["2"] * 3
        for three in (rows[:3], rows[3:]):
            scores = [float(score) for _, score, _ in three]
            assert scores == sorted(scores, reverse=True)

    def test_json(self, trained: Trained) -> None:
        ended = run("translate", trained.model, "--format", "json", "--n-best", 2, stdin="Käse\n\n".encode())
        first, second = map(json.loads, ended.out.splitlines())
        found = load_translator(trained.model).translate("Käse", DecodingOptions(n_best=2))
        assert first["source"] == "Käse"
        assert [each["text"] for each in first["candidates"]] == [each.text for each in found.candidates]
        assert first["text"] == found.text
        assert first["score"] == pytest.approx(found.score, abs=1e-4)
        assert (second["source"], second["text"]) == ("", "")

    def test_a_line_break_in_a_translation_stays_out_of_the_file(self) -> None:
        from headway.corpus.lines import one_line

        assert one_line("a\r\nb\nc\u2028d") == "a  b c\u2028d"


class TestOtherCommands:
    @pytest.mark.slow
    def test_evaluate(self, trained: Trained, data: Path, tmp_path: Path) -> None:
        files = ["--source", data / "dev.de", "--reference", data / "dev.en"]
        ended = run("evaluate", trained.model, *files, "-o", tmp_path / "out.txt")
        assert ended.code == 0
        reason = r"\(no interval: 3 sentences, but at least 10 are needed\)"
        assert len(re.findall(rf"^(BLEU|chrF\S*) [\d.]+ {reason} \S+version:", ended.out, re.MULTILINE)) == 2
        assert "3 sentences translated in" in ended.err
        translated = run("translate", trained.model, "-i", data / "dev.de", "--precision", "float32")
        assert (tmp_path / "out.txt").read_text(encoding="utf-8") == translated.out
        shared = run("evaluate", trained.model, *files, "--workers", 2, "-o", tmp_path / "shared.txt")
        assert shared.out == ended.out
        assert (tmp_path / "shared.txt").read_text(encoding="utf-8") == translated.out
        ended = run("evaluate", trained.model, *files, "--format", "json", "--metric", "exact_match", "--beam-size", 1)
        scores = json.loads(ended.out)
        assert scores["sentences"] == 3
        assert [score["value"] for score in scores["scores"]] == [0.0]

    def test_tokenize(self, trained: Trained) -> None:
        ended = run("tokenize", trained.model, "der Hund sieht <eos>")
        assert ended.out.replace("|", "").strip() == "der␣Hund␣sieht␣<eos>"
        assert "<eos>" not in ended.out.split("|")
        assert run("tokenize", trained.model, stdin=b"der Hund sieht <eos>\n") == ended
        ids = run("tokenize", trained.model, "der Hund", "--ids").out.splitlines()[1].split()
        assert Bundle.load(trained.model).source_tokenizer.decode([int(each) for each in ids]) == "der Hund"

    def test_tokens_control_no_terminal(self, trained: Trained) -> None:
        ended = run("tokenize", trained.model, "der\x1b[31m\x9b\x07\tHund", "--merges")
        assert {character for character in ended.out if unicodedata.category(character)[0] == "C"} == {"\n"}

    def test_tokenize_shows_the_merges_in_their_order(self, trained: Trained) -> None:
        start, *merges, last = run("tokenize", trained.model, "der", "--merges").out.splitlines()
        assert start.split() == ["bytes", "→", "d|e|r"]
        ranks = [int(rank) for rank in re.findall(r"^ +(\d+): ", "\n".join(merges), re.MULTILINE)]
        assert len(ranks) == len(merges) > 0
        assert ranks == sorted(ranks)
        assert merges[-1].endswith(f"→  {last}")

    def test_info(self, trained: Trained) -> None:
        ended = run("info", trained.model)
        assert ended.code == 0
        facts = json.loads(run("info", trained.model, "--format", "json").out)
        assert re.match(r"(\d+) of \1 layers have a fast form$|plain: the compiled kernels", facts["forward pass"])
        assert re.match(
            r"optimized, in float32(, bfloat16 or int8$| or bfloat16; not in int8 \(.+\)$)", facts["search"]
        )
        weights = sum(parameter.numel() for parameter in Bundle.load(trained.model).model.parameters())
        assert facts["weights"] == weights
        assert facts["model.d_model"] == 16
        assert facts["task.source_language"] == "de"
        assert re.search(rf"^weights +{weights:,}$", ended.out, re.MULTILINE)

    def test_values_of_a_strangers_model_control_no_terminal(self, trained: Trained, tmp_path: Path) -> None:
        folder = shutil.copytree(trained.model, tmp_path / "model")
        config = json.loads((folder / "config.json").read_text())
        config["task"]["source_language"] = "\x1b]0;owned\x07"
        (folder / "config.json").write_text(json.dumps(config))
        ended = run("info", folder)
        assert r"\x1b]0;owned\x07" in ended.out
        assert not re.search(r"[^\n -~…]", ended.out)

    def test_average(self, trained: Trained, tmp_path: Path) -> None:
        ended = run("average", trained.folder, "--last", 2, "-o", tmp_path / "mean")
        assert ended == Ended(0, f"{tmp_path / 'mean'}: average of 2 checkpoints\n", "")
        mean, ours = (Bundle.load(folder).model.state_dict() for folder in (tmp_path / "mean", trained.model))
        assert all(torch.equal(mean[name], ours[name]) for name in mean)

    @pytest.mark.slow
    def test_doctor(self) -> None:
        ended = run("doctor")
        assert ended.code == 0
        assert f"headway   {headway.__version__}" in ended.out
        assert "GFLOP/s" in ended.out


class TestBadCorpora:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            (
                "train.en",
                b"the dog\n",
                r"train\.de has 20 lines but .*train\.en has 1 line: line 2 of .*no counterpart",
            ),
            ("train.de", b"", r"train\.de: is empty; expected at least one line"),
            ("train.de", b"der\nHu\0nd\n", r"train\.de, line 2: looks binary"),
            ("train.en", b"the\n" * 3 + b"caf\xe9\n", r"train\.en, line 4: byte 4 .* is not UTF-8.*xpected UTF-8"),
            ("dev.en", b"one\n", r"dev\.de has 3 lines but .*dev\.en has 1 line"),
            ("dev.de", None, r"dev\.de: no such file"),
            ("train.de", None, r"train\.de: no such file; expected a corpus file"),
        ],
    )
    def test_bad_files(self, data: Path, tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
        shutil.copytree(data, tmp_path / "data")
        file = tmp_path / "data" / name
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        recipe = write_recipe(tmp_path, tmp_path / "data")
        for metric in ("bleu", "loss"):  # the BLEU metric reads the development set first
            options = ["--run", tmp_path / "run", "--set", f"validation.metric={metric}"]
            assert_refused(run("train", recipe, *options), message if metric == "bleu" else r"(train|dev)\.(de|en)")
        left = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
        assert not [name for name in left if name.endswith(".part")]
        shutil.copy(data / name, file)
        assert run("train", recipe, "--run", tmp_path / "run", "--set", "training.steps=1").code == 0

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", r"in\.txt: is empty"),
            (b"a\n\xff\n", r"in\.txt, line 2: byte 1 of the line \(0xFF\) is not UTF-8"),
            (b"a\0\n", r"in\.txt, line 1: looks binary"),
        ],
    )
    def test_bad_input_to_translate(self, trained: Trained, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "in.txt").write_bytes(content)
        write_lines(tmp_path / "out.txt", ["before"])
        assert_refused(run("translate", trained.model, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt"), message)
        assert (tmp_path / "out.txt").read_text() == "before\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]

    def test_bad_standard_input(self, trained: Trained) -> None:
        assert_refused(
            run("translate", trained.model, stdin=b"a\n\xff\n"), r"standard input, line 2: byte 1 .* is not UTF-8"
        )

    def test_evaluate_needs_a_reference_for_each_source(self, trained: Trained, data: Path) -> None:
        ended = run("evaluate", trained.model, "--source", data / "train.de", "--reference", data / "dev.en")
        assert_refused(ended, r"train\.de has 20 lines and .*dev\.en has 3; expected a reference for each source")


class TestBadOptions:
    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("model.drop_out=0.1", r"tiny\.toml: unknown key 'model\.drop_out'; did you mean 'dropout'\?"),
            ("model.num_heads=3", "num_heads = 3 does not divide d_model = 16; choose a divisor"),
            ("model.dropout=1.5", r"model\.dropout = 1\.5: .*less than 1"),
            ("validation.beam_size=0", r"validation\.beam_size = 0"),
            ("training", r"--set 'training': expected section\.key=value"),
        ],
    )
    def test_recipes(self, data: Path, tmp_path: Path, assignment: str, message: str) -> None:
        recipe = write_recipe(tmp_path, data)
        assert_refused(run("train", recipe, "--run", tmp_path / "run", "--set", assignment), message)
        assert not (tmp_path / "run").exists()

    def test_no_recipe(self, tmp_path: Path) -> None:
        assert_refused(run("train", tmp_path / "gone.toml"), r"gone\.toml: no such file")

    @pytest.mark.parametrize("command", ["translate", "evaluate"])
    def test_a_beam_of_zero(self, trained: Trained, data: Path, command: str) -> None:
        files = ["--source", data / "dev.de", "--reference", data / "dev.en"] if command == "evaluate" else []
        ended = run(command, trained.model, *files, "--beam-size", 0, stdin=b"der Hund\n")
        assert_refused(ended, r"options: beam_size = 0: .*greater than or equal to 1")

    def test_more_candidates_than_the_beam(self, trained: Trained) -> None:
        ended = run("translate", trained.model, "--n-best", 5, stdin=b"der Hund\n")
        assert_refused(ended, r"options: n_best = 5: expected from 1 to beam_size, which is 4")

    def test_an_unknown_metric(self, trained: Trained, data: Path) -> None:
        files = ["--source", data / "dev.de", "--reference", data / "dev.en"]
        assert_refused(run("evaluate", trained.model, *files, "--metric", "blue"), "did you mean 'bleu'")

    def test_a_changed_recipe_is_not_resumed(self, trained: Trained) -> None:
        ended = run("train", trained.recipe, "--run", trained.folder, "--set", "training.seed=5")
        assert_refused(ended, r"training\.seed was 1, is 5\. .*--fresh")

    def test_debug_shows_the_traceback(self, tmp_path: Path) -> None:
        with pytest.raises(headway.HeadwayError, match=r"gone\.toml"):
            run("--debug", "train", tmp_path / "gone.toml")


class TestDivergence:
    @pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
    @pytest.mark.parametrize(("rate", "diverges"), [(1.0, True), (0.02, False), (0.002, False)])
    def test_a_run_that_has_diverged_ends_with_what_to_change(
        self, data: Path, tmp_path: Path, rate: float, diverges: bool
    ) -> None:
        settings = [f"optimizer.learning_rate={rate}", "model.d_model=64", "validation.metric=loss"]
        options = [word for setting in settings for word in ("--set", setting)]
        recipe = write_recipe(tmp_path, data)
        ended = run("train", recipe, "--run", tmp_path / "run", *options, "--set", "training.steps=12")
        assert ("translate with:" in ended.err) is not diverges
        if diverges:
            assert_refused(ended, "training has diverged: .*Lower optimizer.learning_rate .*start over with --fresh")
        else:
            assert ended.code == 0, ended.err


class TestLongSources:
    def test_a_character_over_the_limit_is_refused_with_file_and_line(self, limited: Path, tmp_path: Path) -> None:
        lines = [*LINES[:2], "x" + "\N{COMBINING TILDE}" * 10, "der Hund"]
        source = write_lines(tmp_path / "in.txt", lines)
        write_lines(tmp_path / "out.txt", ["before"])
        message = "line 3: .* is one character with 22 tokens, but a source may have at most 10; remove some"
        assert_refused(run("translate", limited, "-i", source, "-o", tmp_path / "out.txt"), rf"in\.txt, {message}")
        assert (tmp_path / "out.txt").read_text() == "before\n"
        files = ["--source", source, "--reference", source]
        assert_refused(run("evaluate", limited, *files), rf"in\.txt, {message}")
        assert_refused(run("translate", limited, stdin=source.read_bytes()), f"standard input, {message}")

    def test_a_long_word_is_divided_unless_the_limit_is_raised(self, trained: Trained) -> None:
        long = b"x" * 300 + b"\n"
        options = ["--beam-size", 1, "--max-length", 8, "--format", "json"]
        for more, is_split in (([], True), (["--max-source-tokens", 301], False)):
            ended = run("translate", trained.model, *options, *more, stdin=long)
            (line,) = map(json.loads, ended.out.splitlines())
            assert (ended.code, "split" in line["flags"]) == (0, is_split)


class TestBadModelFolders:
    @pytest.mark.parametrize("command", ["translate", "info", "tokenize"])
    def test_missing(self, tmp_path: Path, command: str) -> None:
        assert_refused(run(command, tmp_path / "gone"), r"gone: .*expected|gone: no such folder")

    def test_a_run_folder_leads_to_its_model(self, trained: Trained) -> None:
        assert_refused(run("info", trained.folder), r"not a model folder; did you mean .*(average|best)\?")

    @pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
    @pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
    def test_damaged(self, trained: Trained, tmp_path: Path, file: str, damage: str) -> None:
        folder = tmp_path / "model"
        shutil.copytree(trained.model, folder)
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        if damage == "truncated":
            (folder / file).write_bytes(content[: len(content) // 2])
        elif damage == "foreign":
            (folder / file).write_bytes(b'{"a": 1}')
        ended = run("translate", folder, stdin=b"der Hund\n")
        assert_refused(ended, r"model: " if (file, damage) == ("config.json", "missing") else re.escape(file))


class TestFullDisk:
    def test_while_saving_a_checkpoint(self, data: Path, tmp_path: Path) -> None:
        recipe = write_recipe(tmp_path, data)
        folder = tmp_path / "run"
        with disk_full(20_000):  # tokenizer and tokens fit on the disk, weights do not
            ended = run("train", recipe, "--run", folder)
        assert_refused(ended, r"step-2: cannot be written .*its previous content is unchanged")
        assert list((folder / "checkpoints").iterdir()) == []
        assert run("train", recipe, "--run", folder).code == 0

    def test_while_saving_an_average(self, trained: Trained, tmp_path: Path) -> None:
        with disk_full(4096):
            ended = run("average", trained.folder, "-o", tmp_path / "mean")
        assert_refused(ended, r"mean: cannot be written")
        assert list(tmp_path.iterdir()) == []

    def test_while_writing_translations(self, trained: Trained, tmp_path: Path) -> None:
        source = write_lines(tmp_path / "in.txt", LINES[:8])
        write_lines(tmp_path / "out.txt", ["before"])
        with disk_full(16):
            ended = run("translate", trained.model, "-i", source, "-o", tmp_path / "out.txt", "--format", "json")
        assert_refused(ended, r"out\.txt: cannot be written .*unchanged")
        assert (tmp_path / "out.txt").read_text() == "before\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_on_a_device(self, trained: Trained) -> None:
        assert_refused(
            run("translate", trained.model, "-o", "/dev/full", stdin=b"der Hund\n"), "/dev/full: No space left"
        )

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_on_standard_output(self, trained: Trained) -> None:
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "headway", "info", str(trained.model)], stdout=full, stderr=subprocess.PIPE
            )
        assert done.returncode == 2
        assert done.stderr.decode() == "headway: standard output: No space left on device\n"


def start(*words: object, **streams: int) -> subprocess.Popen[str]:
    """Start the command in its own process, with one thread and readable standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "headway", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **streams)  # type: ignore[call-overload,no-any-return]


class TestInterruption:
    @pytest.mark.slow
    def test_training_saves_and_says_how_to_go_on(self, data: Path, tmp_path: Path) -> None:
        recipe = write_recipe(tmp_path, data)
        options = ["--run", tmp_path / "run", "--set", "validation.metric=loss"]
        process = start("train", recipe, *options, "--set", "training.steps=1000000")
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith("step "):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(60) == 130, "".join(seen) + rest
        process.stderr.close()
        message = rest.splitlines()[-1]
        match = re.fullmatch(
            r"stopped and saved after step ([\d,]+); resume with: ((?:python -m )?headway train .*)", message
        )
        assert match, rest
        assert "Traceback" not in rest
        assert str(recipe) in match[2]
        assert "training.steps=1000000" in match[2]
        step = int(match[1].replace(",", ""))
        assert (tmp_path / "run" / "checkpoints" / f"step-{step}").is_dir()
        again = start("train", recipe, *options, "--set", f"training.steps={step + 2}")
        _, messages = again.communicate(timeout=120)
        assert again.returncode == 0
        assert f"resuming after step {step:,}" in messages

    @pytest.mark.slow
    def test_translating_leaves_the_old_output(self, trained: Trained, tmp_path: Path) -> None:
        output = write_lines(tmp_path / "out.txt", ["before"])
        process = start("translate", trained.model, "-o", output, stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("der Hund\n")
        process.stdin.flush()  # no end of input: the command waits for more
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) == 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(list(tmp_path.iterdir())) == 2  # the new output is being written
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == "headway: interrupted\n"
        process.stderr.close()
        process.stdin.close()
        assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
        assert output.read_text() == "before\n"

    @pytest.mark.slow
    def test_a_reader_that_has_gone_ends_the_command_quietly(self, trained: Trained, tmp_path: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        process = start("info", trained.model, stdout=writing)
        os.close(writing)
        assert process.stderr is not None
        assert process.wait(60) == 141
        assert process.stderr.read() == ""
        process.stderr.close()


def test_the_application_is_a_typer_one() -> None:
    assert isinstance(app, typer.Typer)
