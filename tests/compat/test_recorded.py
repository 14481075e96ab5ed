"""Artifacts of earlier commits load, resume and return the same results as when they were recorded (:mod:`record`).

Results are compared in float32. Logits (here log-probabilities, which are logits up to a constant) may differ by 1e-3,
a thousand times the rounding of float32 and far below the effect of a changed formula. Losses of ten steps may differ
by 1e-2, because differences of rounding accumulate over the steps. :mod:`record` checks that the losses of a run
without its optimizer's state differ by more.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from observing import RECORDED, checked_command, command, losses, observe
from unpacking import unpack_archive

LOGITS, LOSSES = 1e-3, 1e-2


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Extract ``archive`` into ``folder`` and return what was recorded beside the artifact."""
    unpack_archive(archive, folder)
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return expected


def archives(kind: str) -> list[Path]:
    return sorted(RECORDED.glob(f"{kind}*.tar.xz"))


def each(kind: str) -> pytest.MarkDecorator:
    """Run a test with each archive of a kind."""
    found = archives(kind)
    return pytest.mark.parametrize("archive", found, ids=[path.name.partition(".")[0] for path in found])


def assert_as_recorded(found: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Compare numbers within the tolerance. Texts must be equal or have equal scores."""
    assert found.keys() == recorded.keys()
    for key in ("scores", "next", "log_probabilities"):
        if key in recorded:
            assert_near(found[key], recorded[key])
    for beam, translations in recorded.get("translations", {}).items():
        for mine, theirs in zip(found["translations"][beam], translations, strict=True):
            assert mine["score"] == pytest.approx(theirs["score"], abs=LOGITS * max(1, len(theirs["text"])))
            assert mine["text"] == theirs["text"] or is_tie(mine["score"], theirs["score"])


def is_tie(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) < LOGITS


def assert_near(found: Any, recorded: Any) -> None:
    """Compare numbers in nested lists and tables."""
    if isinstance(recorded, dict):
        assert found.keys() == recorded.keys()
        for key, value in recorded.items():
            assert_near(found[key], value)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for mine, theirs in zip(found, recorded, strict=True):
            assert_near(mine, theirs)
    else:
        assert math.isclose(found, recorded, rel_tol=0, abs_tol=LOGITS), f"{found} is not {recorded}"


@pytest.mark.slow_but_every(4)
@each("bundle-")
def test_a_model_folder_answers_as_recorded(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    assert_as_recorded(observe(tmp_path / "model", expected["texts"]), expected["observed"])


@pytest.mark.slow_but_every(4)
@each("run-")
def test_a_run_resumes_with_the_recorded_losses(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = unpack(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = losses(Path("run"))
    checked_command("train", "recipe.toml", "--run", "run")
    after = losses(Path("run"))
    assert after.items() >= before.items()
    found = {key: loss for key, loss in after.items() if key not in before}
    recorded: dict[str, float] = expected["losses"]
    assert found.keys() == recorded.keys()
    assert sum(key.startswith("train") for key in found) == 10
    if expected["dropout"]:
        assert_plausible(*(list(each.values())[:10] for each in (found, recorded)))
    else:
        assert found == pytest.approx(recorded, abs=LOSSES)


def assert_plausible(found: list[float], recorded: list[float]) -> None:
    """Check that the means of two curves with different dropout differ less than their single steps do."""
    assert abs(statistics.mean(found) - statistics.mean(recorded)) < 2 * statistics.stdev(recorded)


@each("import-")
def test_a_hugging_face_folder_imports_as_recorded(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    foreign = tmp_path / "foreign"
    if (foreign / "source.spm").exists():
        pytest.importorskip("sentencepiece")
    checked_command("import", f"huggingface:{foreign}", "-o", tmp_path / "anew")
    for model in ("model", "anew"):
        assert_as_recorded(observe(tmp_path / model, expected["texts"]), expected["observed"])


@each("export-onnx")
def test_an_onnx_folder_answers_as_recorded(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    expected = unpack(archive, tmp_path)
    assert_as_recorded(observe(tmp_path / "exported", expected["texts"]), expected["observed"])


@each("export-huggingface")
def test_an_exported_hugging_face_folder_can_be_imported(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    checked_command("import", f"huggingface:{tmp_path / 'exported'}", "-o", tmp_path / "back")
    assert_as_recorded(observe(tmp_path / "back", expected["texts"]), expected["observed"])


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2"])
def test_the_export_is_the_recorded_one(form: str, tmp_path: Path) -> None:
    """Check that file names are equal, and the contents of all files except prose."""
    if form == "ctranslate2":
        pytest.importorskip("ctranslate2")
    unpack(RECORDED / f"export-{form}.tar.xz", tmp_path)
    checked_command("export", tmp_path / "model", "--to", form, "-o", tmp_path / "anew")
    recorded, anew = (
        {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "exported", tmp_path / "anew")
    )
    assert anew.keys() == recorded.keys()
    for name, path in recorded.items():
        if name.suffix == ".json":
            assert json.loads(anew[name].read_text()) == json.loads(path.read_text()), name
        elif name.suffix != ".md":
            assert anew[name].read_bytes() == path.read_bytes(), name


def test_resolved_recipes_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only error of each recipe is its missing data, which is checked after the recipe has been accepted."""
    unpack(RECORDED / "recipes.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    recipes = sorted(tmp_path.glob("*.toml"))
    assert len(recipes) >= 10
    for recipe in recipes:
        code, said = command("train", recipe, "--run", tmp_path / recipe.stem, "--set", "data.folder=missing")
        assert code == 2, said
        assert "missing/" in said
        assert "no such file" in said
