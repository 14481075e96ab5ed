"""docs/language_models.md: its recipe trains, and its commands and Python examples run with the trained model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import headway
from headway.cli import app
from headway.data.multiple_choice import DEFAULT_FIELDS
from headway.models import masked, recurrent_lm
from headway.models.decoder_only import PRESETS, DecoderOnly, DecoderOnlyConfig

GUIDE = (Path(__file__).parents[1] / "docs" / "language_models.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (headway .*)$", GUIDE, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
QUESTION = json.loads(re.findall(r"^    (\{.*\})$", GUIDE, re.MULTILINE)[0])
RECIPES = dict(re.findall(r"`(\w+\.toml)`:\n\n```toml\n(.*?)```", GUIDE, re.DOTALL))
SMALL = {
    "data.max_tokens": "512",
    "model.max_length": "64",
    "optimizer.warmup_steps": "1",
    "training.steps": "4",
    "training.device": "cpu",
    "validation.every": "4",
    "checkpoints.every": "2",
}


@pytest.mark.slow
def test_all_of_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands run in order. Models are trained in few steps and with a small size."""
    monkeypatch.chdir(tmp_path)
    for name, recipe in RECIPES.items():
        Path(name).write_text(recipe, encoding="utf-8")
    Path("text.txt").write_text("ROMEO:\nTo be, or not to be: that is the question.\n" * 40, encoding="utf-8")
    Path("test.txt").write_text("To be, that is.\nThe question, or not to be.\n" * 5, encoding="utf-8")
    Path("pairs.tsv").write_text("order\tto be\tbe to\nspelling\tquestion\tqestuion\n", encoding="utf-8")
    assert tuple(QUESTION) == DEFAULT_FIELDS
    questions = [
        {**QUESTION, "question": word, "choices": ["be", "or"]} for word in ("to", "be", "not", "or", "it", "is")
    ]
    Path("questions.jsonl").write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    Path("labeled.tsv").write_text("a\tTo be.\nb\tthe question\n" * 9, encoding="utf-8")
    Path("prompts.txt").write_text("ROMEO:\nTo be\n", encoding="utf-8")
    assert [command.split()[1] for command in COMMANDS] == [
        *["train", *["generate"] * 5],
        *["evaluate"] * 2,
        *["score"] * 3,
        *["evaluate", "evaluate", "compare", "inspect", "train"],
        *["fill"] * 3,
        *["train", "evaluate", "generate", "train", "classify"],
    ]
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if words[0] == "train":
            small = SMALL.keys() - ({"model.max_length"} if "classifier.toml" in words else set())
            words += [word for key in small for word in ("--set", f"{key}={SMALL[key]}")]
        app(words, standalone_mode=False)
        assert capsys.readouterr().out or "-o" in words or words[0] in ("train", "inspect"), command
    continued = Path("continuations.txt").read_text(encoding="utf-8").splitlines()
    assert [line[:5] for line in continued] == ["ROMEO", "To be"]
    for example, kind in zip(EXAMPLES, (headway.LanguageModel, headway.MaskedLanguageModel), strict=True):
        names: dict[str, object] = {}
        exec(example, names)
        assert isinstance(names["model"], kind)
        assert capsys.readouterr().out


def test_keys_sizes_and_presets_are_those_of_the_code() -> None:
    assert RECIPES.keys() == {"mine.toml", "masked.toml", "lstm.toml", "classifier.toml"}
    for preset in PRESETS | masked.PRESETS | recurrent_lm.PRESETS:
        assert f"`{preset}`" in GUIDE
    for preset, millions in {"tiny": "0.8 million", "small": "10.6 million"}.items():
        weights = DecoderOnly(DecoderOnlyConfig.parse({"preset": preset}, "test"), 1).decoder.parameters()
        assert f"{sum(weight.numel() for weight in weights) / 1e6:.1f} million" == millions
        assert f"`{preset}` ({millions}" in GUIDE
