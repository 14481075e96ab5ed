from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import classification
import labellers
import pytest
import torch
from classification import Contestant, LabeledTexts, Result
from rich.console import Console

ANIMALS, TOOLS = ["cat", "dog", "cow"], ["saw", "nail", "axe"]
TEXTS = [f"the {first} and the {second}" for kind in (ANIMALS, TOOLS) for first in kind for second in kind]
LABELS = ["animals"] * 9 + ["tools"] * 9


@pytest.fixture(autouse=True)
def _a_small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labellers, "BUCKETS", 1 << 10)


def test_each_is_asked_about_the_same_texts_and_a_missing_one_says_how_to_get_it() -> None:
    dev = LabeledTexts(["a", "b", "c", "d"], ["x", "y", "x", "y"])
    asked: list[list[str]] = []

    def all_x(texts: list[str]) -> list[str]:
        asked.append(texts)
        return ["x"] * len(texts)

    def missing() -> labellers.Classify:
        raise labellers.MissingError("not installed: pip install it")

    made = classification.measure(Contestant("made", lambda: all_x), dev, 0.0)
    assert (made.accuracy, made.failure) == (0.5, "")
    assert made.training_s is not None
    assert made.training_s >= 0
    assert made.texts_per_s is not None
    assert made.texts_per_s > 0
    assert asked == [dev.texts] * 2  # once to warm up, which gives the accuracy, and once timed
    before = classification.measure(Contestant("before", lambda: all_x, trained=True), dev, 0.0)
    assert before.training_s is None
    absent = classification.measure(Contestant("absent", missing), dev, 0.0)
    assert absent == Result("absent", failure="not installed: pip install it")


def test_the_table_leaves_unknown_figures_empty() -> None:
    results = [
        Result("trained", 0.91875, 123.45, 2_500.4),
        Result("before", 0.5, None, 10.0),
        Result("absent", failure="not installed: pip install it"),
    ]
    text = io.StringIO()
    Console(file=text, width=200).print(classification.results_table(results, 35_000, 2_000))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines() if "│" in line]
    assert "trained on 35,000 texts, measured on 2,000" in text.getvalue()
    assert lines == [
        ["trained", "91.88%", "123.5 s", "2,500", ""],
        ["before", "50.00%", "", "10", ""],
        ["absent", "", "", "", "not installed: pip install it"],
    ]


def test_a_text_is_the_mean_of_its_words_and_pairs() -> None:
    model = labellers.FastText(["A dog, a cat", "a saw"], ["x", "y"])
    assert model.words == {",": 1, "a": 2, "cat": 3, "dog": 4, "saw": 5}
    rows = model.features("A cat, unheard")
    assert rows[:3] == [2, 3, 1]  # lower case, the comma alone; what is new is left out, but not its pair
    pairs = rows[3:]
    assert len(pairs) == 3
    assert all(6 <= row < 6 + labellers.BUCKETS for row in pairs)
    assert model.features("cat , x")[2:] == model.features("then cat , x")[3:]  # the same pair, the same place
    assert model.features("") == [0]
    with torch.no_grad():
        model.output.weight.normal_()
        table = model.table.weight
        expected = torch.stack([table[rows].mean(0), table[[0]].mean(0)]) @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model([rows, [0]]), expected)


@pytest.mark.parametrize("kind", ["fasttext", "regression", "machine"])
def test_baselines_learn_what_words_tell(kind: str) -> None:
    if kind == "fasttext":
        classify = labellers.train_fasttext(TEXTS * 20, LABELS * 20)
    else:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
        classify = labellers.train_tfidf("regression" if kind == "regression" else "machine", TEXTS, LABELS)
    assert classify(["the dog", "an axe or the saw"]) == ["animals", "tools"]


def test_without_scikit_learn_its_rows_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.pipeline", None)
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(labellers.MissingError, match="pip install scikit-learn"):
        labellers.train_tfidf("machine", TEXTS, LABELS)


RECIPE = """
[task]
kind = "classification"
[data]
train = [{ files = ["train.tsv"] }]
dev = { files = ["dev.tsv"] }
[tokenizer]
vocab_size = 300
[model]
d_model = 8
num_heads = 1
d_ff = 8
[optimizer]
schedule = "constant"
warmup_steps = 1
[training]
steps = 2
device = "cpu"
[checkpoints]
average = 0
"""


def test_one_command_trains_all_and_writes_what_the_table_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    for name in ("train.tsv", "dev.tsv"):
        lines = [f"{label}\t{text}\n" for label, text in zip(LABELS, TEXTS, strict=True)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["classification.py", "tiny.toml"])
    output = tmp_path / "figures.json"
    classification.main(
        [tmp_path / "tiny.toml"], data=tmp_path, threads=torch.get_num_threads(), seconds=0.0, output=output
    )
    figures = json.loads(output.read_text(encoding="utf-8"))
    names = [result["name"] for result in figures["results"]]
    assert names == [
        "Headway, tiny",
        "TF-IDF + logistic regression",
        "TF-IDF + linear SVM",
        "fastText's model, in PyTorch",
    ]
    assert (figures["train_texts"], figures["dev_texts"]) == (18, 18)
    assert figures["command"] == "python benchmarks/classification.py tiny.toml"
    accuracies = [result["accuracy"] for result in figures["results"]]
    assert accuracies[1:3] == [1.0, 1.0]  # they have seen these texts
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert "100.00%" in printed
