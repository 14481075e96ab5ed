"""``--device``: every command that runs a model has it, takes a GPU by default if there is one, and uses what it names.

On a machine with a GPU, modules would be moved to it. Here, moves are only recorded.
"""

from __future__ import annotations

import json
from importlib import import_module
from inspect import signature
from keyword import iskeyword
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from command_calls import MODEL_CALLS, NOT_CALLED, OTHER_CALLS, called_commands
from command_line import Ended, assert_refused, run
from torch import nn

import headway
from headway.cli import COMMANDS
from headway.cli.loading import device_for_workers
from headway.cli.options import Device
from headway.errors import ConfigError
from headway.interop.onnx import OnnxModel
from headway.predict import shared_weights

OF_TRAINING = {"train", "distill", "quickstart"}
# Commands without a call of their own in ``MODEL_CALLS`` that have the option.
OTHERS_WITH_DEVICE = {
    *OF_TRAINING,
    *("serve", "experiment"),
    *("corpus translate", "corpus generate", "corpus classify", "corpus score"),
}
pytest_plugins = ["model_folders"]  # the fixtures of that file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices other than the CPU that models were asked to be on, on a machine with a GPU."""
    found: list[str] = []

    def copy_to_device(model: nn.Module, device: torch.device | None) -> nn.Module:
        if device is not None and device.type != "cpu":
            found.append(device.type)
        return shared_weights.copy_sharing_weights(model)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(shared_weights, "copy_to_device", copy_to_device)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_runs_a_model_has_the_option(command: str) -> None:
    *group, name = command.split()
    name = name.replace("-", "_") + "_" * iskeyword(name)
    function = getattr(import_module(".".join(["headway.cli.commands", *group, name])), name)
    hint = get_type_hints(function).get("device")
    assert (hint is not None) == (command in called_commands(MODEL_CALLS) | OTHERS_WITH_DEVICE), (
        "commands that run a model have options.DeviceOption and a call in MODEL_CALLS of tests/cli/command_calls.py"
    )
    expected = {"serve": (str | None, None), **dict.fromkeys(("train", "distill"), (Device | None, None))}
    found = (hint, signature(function).parameters["device"].default) if hint else (Device, "auto")
    assert found == expected.get(command, (Device, "auto"))


def called(call: str, folders: dict[str, Path], *more: str) -> Ended:
    ended = run(*(folders.get(word, word) for word in call.split()), *more)
    assert ended.code == 0, ended.err
    return ended


def test_every_command_is_called() -> None:
    called = called_commands(MODEL_CALLS) | called_commands(OTHER_CALLS)
    assert called == set(COMMANDS) - NOT_CALLED, "each command has a call in tests/cli/command_calls.py"


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("call", MODEL_CALLS)
def test_commands_use_the_device(call: str, folders: dict[str, Path], asked: list[str]) -> None:
    called(call, folders, "--device", "cpu")
    assert asked == []
    called(call, folders)
    models = ("translator", "translator2", "back", "classifier", "language_model", "language_model2", "masked")
    assert asked == ["cuda"] * sum(word in models for word in call.split())


def test_a_gpu_that_is_missing_is_named(folders: dict[str, Path]) -> None:
    ended = run("translate", folders["translator"], "Haus", "--device", "cuda")
    assert_refused(ended, "device = 'cuda': PyTorch finds no GPU on this machine; use 'auto' or 'cpu'")
    ended = run("experiment", "scaling", "-o", folders["translator"].parent / "report", "--device", "cuda")
    assert_refused(ended, "PyTorch finds no GPU")


@pytest.mark.parametrize("name", ["gpu", "cuda:one"])
def test_unknown_devices_are_refused(folders: dict[str, Path], name: str) -> None:
    with pytest.raises(ConfigError, match=f"device = '{name}': expected 'auto', 'cpu' or 'cuda'"):
        headway.load(folders["classifier"], device=name)


def test_a_gpu_that_does_not_exist_is_refused(folders: dict[str, Path], asked: list[str]) -> None:
    with pytest.raises(ConfigError, match="device = 'cuda:1': PyTorch finds 1 GPU on this machine, counted from 0"):
        headway.load(folders["classifier"], device="cuda:1")


@pytest.mark.parametrize("name", ["translator", "classifier", "language_model", "masked"])
def test_models_are_loaded_on_the_gpu_if_there_is_one(folders: dict[str, Path], asked: list[str], name: str) -> None:
    headway.load(folders[name], device="cpu")
    assert asked == []
    headway.load(folders[name])
    assert asked == ["cuda"]


@pytest.mark.parametrize("name", ["translator", "language_model"])
def test_int8_computes_on_the_cpu(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("headway.kernels.is_available", lambda: True)
    assert headway.load(folders[name], precision="int8").device == torch.device("cpu")
    monkeypatch.setattr(
        shared_weights, "copy_to_device", lambda model, device: shared_weights.copy_sharing_weights(model).to("meta")
    )
    with pytest.raises(ConfigError, match="int8 is not supported on meta; use --device cpu or --precision auto"):
        headway.load(folders[name], precision="int8", device="cuda")


@pytest.mark.parametrize(
    ("words", "has_gpu", "compiles"),
    [([], False, True), ([], True, False), (["--precision", "int8"], True, True), (["--device", "cpu"], True, True)],
)
def test_no_kernels_are_compiled_for_a_gpu(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    has_gpu: bool,
    compiles: bool,
) -> None:
    started: list[bool] = []
    monkeypatch.setattr("headway.kernels.start_compiling", lambda: started.append(True))
    monkeypatch.setattr("headway.cli.commands.translate._GPU_DRIVERS", [str(tmp_path)] if has_gpu else [])
    run("translate", folders["translator"], "Haus", *words)
    assert started == [True] * compiles


def test_onnx_folders_run_on_the_cpu(
    folders: dict[str, Path], asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    for file in folders["translator"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "step.onnx").touch()
    monkeypatch.setattr("headway.predict.translation.translator.DECODER_STEP_FILE", "step.onnx")
    monkeypatch.setattr("headway.predict.translation.translator.OnnxModel.load", lambda _: object.__new__(OnnxModel))
    assert headway.load(folder).device == torch.device("cpu")
    assert asked == []
    with pytest.raises(ConfigError, match=r"device = 'cuda': .* is an ONNX folder, which runs on the CPU; use 'cpu'"):
        headway.load(folder, device="cuda")


def test_several_processes_compute_on_the_cpu(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert device_for_workers("auto", 1) == "auto"
    assert device_for_workers("cuda", 1) == "cuda"
    assert device_for_workers("cpu", 2) == "cpu"
    assert capsys.readouterr().err == ""
    assert device_for_workers("auto", 2) == "cpu"
    assert "with --workers, the model runs on the CPU; leave out --workers to use the GPU" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--workers 2: several processes would share the GPU; leave out --workers"):
        device_for_workers("cuda", 2)


def test_without_a_gpu_several_processes_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_for_workers("auto", 2) == "cpu"
    assert capsys.readouterr().err == ""


RECIPE = """
[data]
folder = "."
train = [{ files = ["source", "target"] }]
"""


@pytest.mark.parametrize(
    ("option", "device"), [([], "auto"), (["--device", "cpu"], "cpu"), (["--device", "cuda"], "cuda")]
)
@pytest.mark.parametrize("command", sorted(OF_TRAINING))
def test_training_uses_the_device(
    command: str, option: list[str], device: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    seen: list[str] = []

    def train(*arguments: Any, **_: Any) -> Any:
        seen.append(next(each.training.device for each in arguments if hasattr(each, "training")))
        raise ConfigError("seen")

    for name in ("quickstart.train", "recipes.loop.train", "recipes.translate_corpora"):
        monkeypatch.setattr(f"headway.calls.{name}", train)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    words: dict[str, list[object]] = {
        "train": [recipe],
        "distill": [folders["translator"], recipe],
        "quickstart": ["--size", "1000", "--language-model"],
    }
    assert_refused_with_seen(run(command, *words[command], "--run", tmp_path / "run", *option))
    assert seen == [device]


def assert_refused_with_seen(ended: Ended) -> None:
    assert ended.code == 2
    assert ended.err.endswith("headway: seen\n"), ended.err


def test_the_device_of_an_inspection_is_not_part_of_it(folders: dict[str, Path]) -> None:
    ended = called("inspect translator Haus -o - --device cpu", folders)
    assert "device" not in json.loads(ended.out)
