"""The environment of a run: what is recorded, what stays as it began, and which changes cause a warning."""

from __future__ import annotations

import json
import platform
import subprocess
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.errors import CheckpointError
from headway.training import environment
from headway.training.environment import record_environment

CPU = torch.device("cpu")


def entries(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "environment.json").read_text())
    return found


def capable(monkeypatch: pytest.MonkeyPatch, yes: bool) -> None:
    """Let the hardware compute bfloat16, or not."""
    monkeypatch.setattr(environment, "has_fast_bfloat16", lambda _: yes)


def silent(run: Path, precision: str = "auto", *, step: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return record_environment(run, CPU, precision, step=step)


def test_every_start_is_recorded(tmp_path: Path) -> None:
    silent(tmp_path, "float32", step=0)
    silent(tmp_path, "float32", step=7)
    first, second = entries(tmp_path)
    assert (first["step"], second["step"]) == (0, 7)
    assert first["torch"] == torch.__version__
    assert first["python"] == platform.python_version()
    assert first["threads"] == torch.get_num_threads()
    assert (first["device"], first["precision"], first["processes"]) == ("cpu", "float32", 1)
    assert all(first[name] for name in ("headway", "numpy", "tokenizers", "processor", "started"))


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    folder = Path(environment.__file__).parents[3]
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    silent(tmp_path, "float32", step=0)
    commit = entries(tmp_path)[-1]["commit"]
    if head.returncode:
        assert commit is None
    else:
        assert commit is not None
        assert commit.removesuffix("+") == head.stdout.strip()


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package installed inside the checkout of another project has no commit either."""
    package = tmp_path / "site-packages" / "headway"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(package / "training" / "environment.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert environment.git_commit() is None
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert environment.git_commit() is None


@pytest.mark.parametrize(("began_capable", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_auto_keeps_the_precision_that_the_run_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began_capable: bool, precision: str
) -> None:
    capable(monkeypatch, began_capable)
    assert silent(tmp_path, step=0) == precision
    assert silent(tmp_path, step=3) == precision
    capable(monkeypatch, not began_capable)
    with pytest.warns(UserWarning, match=rf"'auto': the run was started in {precision} and continues in it.*--fresh"):
        assert record_environment(tmp_path, CPU, "auto", step=5) == precision
    assert silent(tmp_path, step=0) != precision  # at step 0 nothing is trained yet


def test_a_precision_in_the_recipe_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capable(monkeypatch, False)
    assert silent(tmp_path, "bfloat16", step=0) == "bfloat16"
    assert silent(tmp_path, "bfloat16", step=2) == "bfloat16"


@pytest.mark.parametrize(
    ("name", "before", "message"),
    [
        ("torch", "2.6.0", rf"torch was 2\.6\.0, is {torch.__version__}"),
        ("threads", 99, r"threads was 99, is \d"),
        ("precision", "bfloat16", "precision was bfloat16, is float32"),
        ("processor", "abacus", "processor was abacus, is "),
        ("device", "cuda", "device was cuda, is cpu"),
        ("processes", 4, "processes was 4, is 1"),
    ],
)
def test_a_change_that_affects_the_last_bits_is_named(tmp_path: Path, name: str, before: object, message: str) -> None:
    silent(tmp_path, "float32", step=0)
    (entry,) = entries(tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps([{**entry, name: before}]))
    message = message.replace("+", r"\+")
    with pytest.warns(UserWarning, match=rf"the environment has changed \({message}.*not bit-identical"):
        record_environment(tmp_path, CPU, "float32", step=1)
    silent(tmp_path, "float32", step=2)  # nothing has changed since the last start


def test_other_changes_are_not_named(tmp_path: Path) -> None:
    silent(tmp_path, "float32", step=0)
    (entry,) = entries(tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps([{**entry, "commit": "0" * 40, "headway": "0.0.1"}]))
    silent(tmp_path, "float32", step=1)


@pytest.mark.parametrize("content", ["{", "{}", "[1]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "environment.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"environment\.json: damaged \(.+\).*remove it"):
        record_environment(tmp_path, CPU, "auto", step=1)


@pytest.mark.parametrize("name", ["numpy", "tokenizers"])
def test_other_versions_of_libraries_cause_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    silent(tmp_path, "float32", step=0)
    monkeypatch.setattr(environment, "version", lambda package: "9.9" if package == name else version(package))
    with pytest.warns(UserWarning, match=rf"the environment has changed \({name} was .*, is 9.9\)"):
        record_environment(tmp_path, CPU, "float32", step=3)


def test_an_order_that_rests_on_numpy_is_not_resumed_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent(tmp_path, "float32", step=0)
    monkeypatch.setattr(environment, "version", lambda package: "9.9" if package == "numpy" else version(package))
    with (
        pytest.warns(UserWarning, match="the order of the data depends on NumPy"),
        pytest.warns(UserWarning, match="the environment has changed"),
    ):
        record_environment(tmp_path, CPU, "float32", step=3, order_version=1)
