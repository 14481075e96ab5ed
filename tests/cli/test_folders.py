"""The output folders of export and import: beside their source, and replacing only an older model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import assert_refused, run

from headway.cli.folders import sibling_folder
from headway.predict import Translator


@pytest.fixture
def model(make_translator: Callable[..., Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_translator("whitespace").bundle.save(tmp_path / "home" / "model", "# Card")
    monkeypatch.chdir(tmp_path / "home")
    return Path("model")


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_names(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sibling_folder(Path("a/b"), "onnx") == Path("a/b-onnx")
    monkeypatch.chdir(model)
    home = Path.cwd().parent
    assert sibling_folder(Path(), "onnx") == home / "model-onnx"
    assert sibling_folder(Path(".."), "onnx") == home.parent / "home-onnx"
    assert run("export", ".", "--to", "huggingface").code == 0
    assert (home / "model-huggingface" / "model.safetensors").is_file()


def test_an_unknown_format_with_a_slash(model: Path) -> None:
    assert_refused(run("export", model, "--to", "a/b"), "format 'a/b'; known: ctranslate2, headway, huggingface, onnx")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("model", r"model: contains .*, which would be lost"),
        ("model/../model", r"contains .*, which would be lost"),
        (".", r"\.: contains .*, which would be lost"),
        ("/", r"/: contains .*, which would be lost"),
        ("notes", r"notes: contains files but no model \(config\.json\), and would be overwritten"),
    ],
)
def test_what_would_be_lost(model: Path, output: str, message: str) -> None:
    Path("notes").mkdir()
    Path("notes/precious.txt").write_text("x")
    before = content(Path.cwd())
    assert_refused(run("export", model, "--to", "huggingface", "-o", output), message)
    assert_refused(run("import", f"huggingface:{model}", "-o", output), message)
    assert content(Path.cwd()) == before


def test_where_the_command_runs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("elsewhere/deep").mkdir(parents=True)
    monkeypatch.chdir("elsewhere/deep")
    for output in (".", ".."):
        assert_refused(
            run("export", "../../model", "--to", "huggingface", "-o", output), "is or contains the working directory"
        )


def test_an_older_model_and_an_empty_folder_are_replaced(model: Path) -> None:
    Path("empty").mkdir()
    for output in ("empty", "empty", "new"):
        assert run("export", model, "--to", "huggingface", "-o", output).code == 0
        assert Path(output, "model.safetensors").is_file()


def test_a_file_stays(model: Path) -> None:
    Path("file").write_text("x")
    assert_refused(run("export", model, "--to", "huggingface", "-o", "file"), "it is a file, not a folder")
    assert Path("file").read_text() == "x"
