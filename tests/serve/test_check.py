"""``headway serve --check`` finds what a start would find."""

from __future__ import annotations

import shutil
import socket
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from headway.cli.commands.serve import serve
from headway.errors import HeadwayError
from headway.interop.onnx import DECODER_STEP_FILE
from headway.serve.check import check_configuration
from headway.serve.config import LimitsConfig, ModelConfig, ServeConfig

pytest_plugins = ["small_model"]


def config(folder: Path, model: dict[str, Any] | None = None, /, **settings: Any) -> ServeConfig:
    return ServeConfig(models=(ModelConfig(path=str(folder), **(model or {})),), **({"port": 0} | settings))


def test_a_configuration_that_starts(model_folder: Path, tmp_path: Path) -> None:
    files = {"glossary_folder": str(tmp_path / "a" / "b"), "usage_file": str(tmp_path / "usage.json")}
    assert check_configuration(config(model_folder, **files)) == []
    assert not list(tmp_path.iterdir())  # nothing was made


@pytest.mark.parametrize("load", ["start", "demand"])
@pytest.mark.parametrize("damage", ["missing", "empty", "no weights", "short weights", "no tokenizer"])
def test_a_model_that_cannot_be_loaded(model_folder: Path, tmp_path: Path, damage: str, load: str) -> None:
    folder = tmp_path / "model"
    if damage == "empty":
        folder.mkdir()
    elif damage != "missing":
        shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    if damage == "no weights":
        weights.unlink()
    elif damage == "short weights":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "no tokenizer":
        next(folder.glob("*tokenizer*.json")).unlink()
    with pytest.raises(HeadwayError, match=str(folder)):
        check_configuration(config(folder, {"load": load}))


def test_a_precision_that_the_model_does_not_have(model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / DECODER_STEP_FILE).touch()
    with pytest.raises(HeadwayError, match="the model m: precision 'int8': an ONNX folder runs in float32; use 'auto'"):
        check_configuration(config(folder, {"name": "m", "precision": "int8"}))


def test_files_that_cannot_be_used(model_folder: Path, tmp_path: Path) -> None:
    file, glossaries = tmp_path / "file", tmp_path / "glossaries"
    file.write_text("nothing")
    glossaries.mkdir()
    (glossaries / "a.json").write_text("nothing")
    for settings, message in (
        ({"usage_file": str(file)}, "usage_file: .*file cannot be read"),
        ({"usage_file": str(tmp_path)}, "is a folder"),
        ({"usage_file": str(file / "usage.json")}, "usage_file: .*file is not a folder"),
        ({"glossary_folder": str(file / "a")}, "glossary_folder: .*file is not a folder"),
        ({"glossary_folder": str(glossaries)}, "not a glossary of this service"),
    ):
        with pytest.raises(HeadwayError, match=message):
            check_configuration(config(model_folder, **settings))


def test_an_address_that_cannot_be_used(model_folder: Path) -> None:
    with pytest.raises(HeadwayError, match=r"192\.0\.2\.1:5000: cannot listen"):
        check_configuration(config(model_folder, host="192.0.2.1", port=5000))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert check_configuration(config(model_folder, port=port)) == [f"127.0.0.1:{port} is in use now"]


def test_models_that_are_larger_than_the_budget(model_folder: Path) -> None:
    with pytest.raises(HeadwayError, match=r"limits\.memory_mb = 0.01, but the weights"):
        check_configuration(config(model_folder, limits=LimitsConfig(memory_mb=0.01)))
    check_configuration(config(model_folder, {"load": "demand"}, limits=LimitsConfig(memory_mb=0.01)))


def test_the_command(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f"port = 0\nmodels = [{{ path = '{model_folder}' }}, {{ path = 'nothing' }}]\n")
    with pytest.raises(HeadwayError, match="nothing"):
        serve(config=path, check=True)
    path.write_text(f"port = 0\nmodels = [{{ path = '{model_folder}' }}]\n")
    with redirect_stdout(StringIO()) as output:
        serve(config=path, check=True)
    assert output.getvalue().startswith(f"{path}: correct; 1 models\n")
