from __future__ import annotations

import json
from pathlib import Path

import pretraining
import pytest

from headway.tasks import load_recipe, train

ROOT = Path(__file__).parents[2]
SMALL = ("d_model=16", "num_heads=2", "d_ff=16", "encoder_layers=1", "max_length=32")


def test_a_text_counts_once_however_many_seeds_there_are() -> None:
    """By hand: per text, pretrained minus scratch is 1, 0.5, 0 and 0 over two seeds: 37.5 points."""
    truth = ["x", "x", "y", "y"]
    scratch = [["y", "y", "y", "y"], ["y", "x", "y", "y"]]
    found = pretraining.compare_over_seeds([truth, truth], scratch, truth)
    assert found["delta"] == pytest.approx(37.5)
    assert found["low"] < 37.5 < found["high"]
    assert pretraining.compare_over_seeds([truth], [truth], truth) == {"delta": 0, "low": 0, "high": 0, "p_value": 1}
    twice = pretraining.compare_over_seeds([truth] * 4, scratch * 2, truth)
    assert twice == pytest.approx(found)  # repeating the seeds makes nothing more certain


@pytest.mark.slow
def test_the_quick_form_runs_all_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"the {first} and the {second}" for first in ("cat", "dog", "axe") for second in ("cow", "saw", "nail")]
    rows = [("World" if "cow" in text else "Sports", text) for text in texts] * 4
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts * 10), encoding="utf-8")
    changes = [*pretraining.QUICK, "data.max_tokens=256", "tokenizer.vocab_size=300", "checkpoints.keep=1"]
    sizes = [f"model.{each}" for each in SMALL]
    books = load_recipe(ROOT / "recipes" / "books-bert.toml", [*changes, *sizes, f"data.folder={tmp_path}"])
    start = train(books, tmp_path / "masked").model_folder
    assert start is not None
    recipe, output = ROOT / "recipes" / "ag-news-pretrained.toml", tmp_path / "figures.json"

    def run() -> dict[str, object]:
        pretraining.main(recipe, start, tmp_path, tmp_path / "runs", seeds=2, quick=True, output=output)
        return dict(json.loads(output.read_text(encoding="utf-8")))

    first = run()
    accuracies = first["accuracy"]
    assert isinstance(accuracies, dict)
    assert [len(accuracies[name]) for name in (pretraining.PRETRAINED, pretraining.SCRATCH_NAME)] == [2, 2]
    assert "all seeds: " in capsys.readouterr().out
    monkeypatch.delattr(pretraining, "train_recipe")  # finished runs need none
    again = run()
    assert {key: again[key] for key in ("accuracy", "seeds", "all_seeds")} == {
        key: first[key] for key in ("accuracy", "seeds", "all_seeds")
    }
    with pytest.raises(SystemExit, match="trained with another recipe"):
        pretraining.main(
            recipe, start, tmp_path, tmp_path / "runs", seeds=1, quick=True, assignments=["training.steps=3"]
        )
