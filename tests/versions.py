"""Run the core of the suite with the lowest and the newest versions of the dependencies that pyproject.toml allows.

    make test-versions                                   # before a release; CONTRIBUTING.md records the last run
    make test-versions VERSIONS="lowest-3.11" TESTS="tests/nn"

``lowest-3.11`` has the lowest version in each range of pyproject.toml (``>=``), with the oldest Python that the
requirement allows. ``newest-3.N`` has the newest versions that pip finds, with each Python that the classifiers list,
if ``python3.N`` is on PATH. The tools (pytest and so on) are those of constraints.txt. Each environment is made in
``.versions/`` (up to 7 GB with PyTorch's CUDA build, in which nothing runs on a GPU) and deleted after its run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".versions"
EXTRAS = (
    "ctranslate2",
    "hub",
    "huggingface",
    "marian",
    "moses",
    "onnx",
    "plots",
    "quickstart",
    "sentencepiece",
    "tensorboard",
)
SERVICE = ("documents", "serve")  # only with the newest versions: its detection of languages needs NumPy 2
TOOLS = ("beartype", "greenlet", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
# Layers, models, tokenizers, data, decoding, kernels, ONNX, bundles, Translator, and training with exact resume.
CORE = (
    *("nn", "models", "text", "data", "decode", "engine", "kernels", "compat", "interop/test_onnx.py"),
    *("test_bundle.py", "test_config.py", "test_storage.py", "test_torch_internals.py", "tasks/test_reference.py"),
    *(f"predict/translation/test_{name}.py" for name in ("translator", "pool")),
    *("predict/test_threads.py", "predict/language_modeling/test_generation.py"),
    *(f"training/test_{name}.py" for name in ("optim", "muon", "ema", "loop", "resume", "state", "stream")),
)


def project() -> dict[str, object]:
    """Return the table ``project`` of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def requirements(table: dict[str, object], names: tuple[str, ...]) -> list[Requirement]:
    """Return the requirements of the package and of the extras ``names`` that apply to this machine."""
    own, extras = table["dependencies"], table["optional-dependencies"]
    assert isinstance(own, list)
    assert isinstance(extras, dict)
    # An extra that contains another one names the package itself, as headway[documents].
    listed = [Requirement(text) for text in (*own, *(text for extra in names for text in extras[extra]))]
    return [
        requirement
        for requirement in listed
        if requirement.name != "headway" and (requirement.marker is None or requirement.marker.evaluate())
    ]


def lowest(requirement: Requirement) -> str:
    """Return the requirement of only the lowest version in the range."""
    (version,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
    return f"{requirement.name}=={version}"


def pythons(table: dict[str, object]) -> list[str]:
    """Return the names of the Pythons in the classifiers, oldest first: "3.11", "3.12" and so on."""
    prefix, classifiers = "Programming Language :: Python :: 3.", table["classifiers"]
    assert isinstance(classifiers, list)
    minors = sorted(int(text.removeprefix(prefix)) for text in classifiers if text.startswith(prefix))
    return [f"3.{minor}" for minor in minors]


def interpreter(python: str) -> str | None:
    """Return the path of the Python "3.N", or None if there is none on PATH that starts."""
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{python}")
    works = found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0
    return found if works else None


def run(name: str, table: dict[str, object], tests: list[str]) -> str:
    """Make an environment, run the tests in it, and return the result in a few words."""
    kind, _, python = name.partition("-")
    if (executable := interpreter(python)) is None:
        return f"NOT RUN: no python{python} on PATH"
    environment, start = FOLDER / name, time.monotonic()
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
    if kind == "lowest":
        wanted = [lowest(requirement) for requirement in requirements(table, EXTRAS)]
    else:
        wanted = [requirement.name for requirement in requirements(table, (*EXTRAS, *SERVICE))]
    tools = [f"{tool}=={pins[tool]}" for tool in TOOLS]
    subprocess.run([executable, "-m", "venv", "--clear", environment], check=True)
    command = [str(environment / "bin" / "python"), "-m"]
    install = ["pip", "install", "--quiet", "--no-cache-dir"]
    if subprocess.run([*command, *install, *wanted, *tools, "--editable", str(ROOT)], check=False).returncode:
        return "FAILED: pip could not install these versions (see above)"
    subprocess.run([*command, "pip", "list", "--format", "freeze"], check=True)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    # Old versions of a package use what new versions of its own dependencies deprecate.
    pytest = [*command, "pytest", "-W", "default::DeprecationWarning", "-n", "auto", "--dist", "worksteal", *tests]
    code = subprocess.run(pytest, cwd=ROOT, env=variables, check=False).returncode
    return f"{'passed' if code == 0 else f'FAILED (exit code {code})'} in {time.monotonic() - start:.0f} s"


def main() -> None:
    """Run the versions named on the command line, or all of them."""
    table = project()
    names = pythons(table)
    known = [f"lowest-{names[0]}", *(f"newest-{python}" for python in names)]
    parser = argparse.ArgumentParser(description="Run the core of the suite with other versions of the dependencies.")
    parser.add_argument("versions", nargs="*", help=f"any of {', '.join(known)}; default: all")
    parser.add_argument("--tests", nargs="*", default=[f"tests/{path}" for path in CORE], help="instead of the core")
    parser.add_argument("--keep", action="store_true", help="do not delete the environments")
    asked = parser.parse_args()
    if unknown := set(asked.versions) - set(known):
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    results = {}
    for name in asked.versions or known:
        print(f"== {name}", flush=True)
        results[name] = run(name, table, asked.tests)
        if not asked.keep:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
    for name, result in results.items():
        print(f"{name:<12} {result}")
    sys.exit(any("passed" not in result for result in results.values()))


if __name__ == "__main__":
    main()
