"""Optional packages: if one is missing, a command explains in one line how to install it. Training needs none."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headway.errors import MissingPackageError

EXTRAS = MissingPackageError.EXTRAS
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = {
    "babel": ["quickstart", "--run", "RUN"],
    "matplotlib": ["curves", "RUN"],
    "ctranslate2": ["export", "MODEL", "--to", "ctranslate2", "-o", "RUN"],
    "greenlet": ["serve", "MODEL", "--check"],
    "onnx": ["export", "MODEL", "--to", "onnx", "-o", "RUN"],
    "onnxruntime": ["export", "MODEL", "--to", "onnx", "-o", "RUN"],
}


def without(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process in which ``package`` cannot be imported."""
    code = f"import sys\nsys.modules[{package!r}] = None\nimport headway.cli\nheadway.cli.main()"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


def installs(extra: str) -> set[str]:
    """Return the packages of an extra, including those of nested extras."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, _, inner = requirement.partition("[")
        if name == "headway":
            found |= {package for part in inner.rstrip("]").split(",") for package in installs(part)}
        else:
            found.add(re.split(r"[<>=;\[ ]", name)[0].replace("_", "-"))
    return found


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_of_a_message_installs_the_package(package: str) -> None:
    assert package.replace("_", "-") in installs(EXTRAS[package])
    assert not any(requirement.startswith(package) for requirement in PROJECT["dependencies"])


@pytest.mark.slow_but_every(len(COMMANDS))
@pytest.mark.parametrize("package", COMMANDS)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, tmp_path: Path, make_translator: object
) -> None:
    make_translator().bundle.save(tmp_path / "model", "# Card")  # type: ignore[operator]
    paths = {"RUN": str(tmp_path / "run"), "MODEL": str(tmp_path / "model")}
    done = without(package, *(paths.get(word, word) for word in COMMANDS[package]))
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    hint = rf"pip install 'headway\[{EXTRAS[package]}\]'"
    assert re.fullmatch(f"headway: .* needs the package '{package}', which is not installed; {hint}", line), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_without_tensorboard_training_says_so_once_and_writes_the_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.training.report import MetricsWriter

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard.writer", raising=False)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.warns(UserWarning, match=r"TensorBoard events .* pip install 'headway\[tensorboard\]'"):
        metrics = MetricsWriter(tmp_path, 0)
    (tmp_path / "again").mkdir()
    metrics.write("train", 1, {"loss": 2.0})
    metrics.close()
    assert '"loss": 2.0' in (tmp_path / "metrics.jsonl").read_text()
    assert not (tmp_path / "tensorboard").exists()
    MetricsWriter(tmp_path / "again", 0).close()  # a warning would be an error
