"""The wheel of ``make dist``, installed without the repository, with the packages of the base install or of all extras.

Nothing is downloaded: an environment gets links to those packages of this environment that pip would install for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from headway.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE_FILES = ("src", "docs", "recipes", "Makefile", "pyproject.toml", "constraints.txt", "MANIFEST.in")
TEXTS = ["CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"]
LINES = ["der Hund", "die Katze", "der Hund sieht die Katze"]
RECIPE = """
[task]
source_language = "de"
target_language = "en"
[data]
train = [{files = ["train.de", "train.en"]}]
dev = {files = ["train.de", "train.en"]}
max_tokens = 200
[tokenizer]
vocab_size = 300
[model]
d_model = 16
num_heads = 2
d_ff = 16
encoder_layers = 1
decoder_layers = 1
[training]
steps = 2
"""
# Without capabilities, root cannot write to folders without write permission either.
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel, whose site-packages cannot be written, and a folder to work in."""

    folder: Path

    @property
    def site_packages(self) -> Path:
        (path,) = self.folder.glob("environment/lib/python*/site-packages")
        return path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def pip(self) -> list[str]:
        """The words that start the pip of this environment for the other one, which has none."""
        return [sys.executable, "-m", "pip", "--python", str(self.folder / "environment" / "bin" / "python")]

    def command(self, *words: object) -> list[str]:
        """Return the words of a command whose program is in the environment."""
        return [*UNPRIVILEGED, *map(str, [self.folder / "environment" / "bin" / str(words[0]), *words[1:]])]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a user who has only this environment."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the folder to work in."""
        return subprocess.run(
            self.command(*words), cwd=self.work, env=self.variables, capture_output=True, text=True, check=False
        )

    def headway(self, *words: object) -> str:
        """Run a command of Headway, which must succeed, and return its output."""
        done = self.run("headway", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution, built from a copy of the repository's files."""
    if shutil.which("make") is None or (UNPRIVILEGED and shutil.which("setpriv") is None):
        pytest.skip("needs make, and as root also setpriv")
    copy = tmp_path_factory.mktemp("repository")
    for name in (*SOURCE_FILES, *TEXTS):
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "experiments" if name == "docs" else "")
            shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy / name)
    ready = f"{sys.prefix}/.ready"  # nothing is to be installed
    make = ["make", f"--old-file={ready}", f"VENV={sys.prefix}", "dist"]
    done = subprocess.run(make, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


def required(extras: Sequence[str]) -> list[str]:
    """Return the names of the packages of this environment that Headway needs with ``extras``, itself excluded."""
    done: set[tuple[str, str]] = set()
    waiting = [Requirement(f"headway[{','.join(extras)}]")]
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in done:
                continue
            done.add((requirement.name, extra))
            for text in distribution(requirement.name).requires or ():
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(inner)
    return sorted({name for name, _ in done} - {"headway"})


def make_environment(folder: Path, wheel: Path, extras: Sequence[str]) -> Environment:
    """Make an environment with the wheel and links to the packages that it needs with ``extras``."""
    environment = Environment(folder)
    environment.work.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"], check=True)
    try:
        packages = [distribution(name) for name in required(extras)]
    except PackageNotFoundError as error:
        pytest.skip(f"the package {error.name} is not installed here")
    for package in packages:
        for part in {path.parts[0] for path in package.files or ()} - {"..", "__pycache__"}:
            link = environment.site_packages / part
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(part))))
    install = ["install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*environment.pip, *install], check=True)
    subprocess.run(
        [*environment.pip, "check"], check=True
    )  # the packages meet the requirements in the wheel's metadata
    for path in (environment.site_packages, *(environment.site_packages / "headway").rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    for name, texts in (("train.de", LINES), ("train.en", [line.upper() for line in LINES])):
        (environment.work / name).write_text("".join(f"{line}\n" for line in texts))
    (environment.work / "recipe.toml").write_text(RECIPE)
    return environment


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without extras, in which a model has been trained."""
    environment = make_environment(tmp_path_factory.mktemp("base"), wheel, [])
    environment.headway("train", "recipe.toml", "--run", "run")
    return environment


@pytest.fixture(scope="module")
def full(wheel: Path, base: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with all extras but ``ray`` and ``dev``, and with the trained model."""
    extras = set(distribution("headway").metadata.get_all("Provides-Extra") or ()) - {"ray", "dev"}
    environment = make_environment(tmp_path_factory.mktemp("full"), wheel, sorted(extras))
    shutil.copytree(base.work / "run", environment.work / "run")
    if (base.folder / "home").exists():  # compiled kernels
        shutil.copytree(base.folder / "home", environment.folder / "home")
    return environment


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "headway").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("headway/")}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_the_source_distribution_contains_docs_and_recipes(dist: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"headway-{__version__}"
    recipes = [path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*.toml")]
    assert recipes
    expected = [*map(Path, TEXTS), Path("docs", "training.md"), Path("docs", "pictures", "page.png"), *recipes]
    assert [path for path in expected if not (folder / path).is_file()] == []
    assert not (folder / "tests").exists()


class TestBase:
    def test_the_installed_package_is_used(self, base: Environment) -> None:
        assert base.headway("--version") == f"headway {__version__}\n"
        code = "import headway, importlib.metadata as m; print(headway.__file__, m.version('headway'))"
        done = base.run("python", "-c", code)
        assert done.stdout == f"{base.site_packages}/headway/__init__.py {__version__}\n", done.stderr

    def test_translating_compiles_the_kernels_once_into_the_users_cache(self, base: Environment) -> None:
        words = ("translate", "run/best", "der Hund", "--precision", "int8", "--format", "json")
        (line,) = base.headway(*words).splitlines()
        assert json.loads(line)["source"] == "der Hund"
        kernels = base.folder / "home" / ".cache" / "headway" / "kernels"
        code = {path.name: path.stat().st_mtime_ns for path in kernels.glob("*.nb*")}
        assert code
        assert not list((base.site_packages / "headway").rglob("*.nb*"))
        assert base.headway(*words) == line + "\n"
        assert {path.name: path.stat().st_mtime_ns for path in kernels.glob("*.nb*")} == code

    @pytest.mark.parametrize(
        ("words", "extra"),
        [
            (["serve", "run/best"], "serve"),
            (["curves", "run"], "plots"),
            (["quickstart", "--run", "quickstart"], "quickstart"),
            (["export", "run/best", "--to", "onnx", "-o", "onnx"], "onnx"),
        ],
    )
    def test_a_missing_extra_is_named_with_a_command_that_adds_it(
        self, base: Environment, words: list[str], extra: str
    ) -> None:
        done = base.run("headway", *words)
        assert done.returncode == 2
        hint = rf"needs the package '[a-z_]+', which is not installed; pip install 'headway\[{extra}\]'\n$"
        assert re.search(hint, done.stderr), done.stderr
        # pip finds Headway installed, and looks only for the packages of the extra.
        install = [*base.pip, "install", "--dry-run", "--no-index", f"headway[{extra}]"]
        sought = subprocess.run(install, capture_output=True, text=True, check=False)
        assert f"Requirement already satisfied: headway[{extra}]" in sought.stdout
        assert re.search(rf'satisfies the requirement .*extra == "{extra}"', sought.stderr)


@contextmanager
def service(environment: Environment) -> Iterator[str]:
    """Serve the trained model, and yield the address when the service answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = environment.command("headway", "serve", "run/best", "--port", port)
    with (environment.folder / "service.log").open("w") as log:
        process = subprocess.Popen(words, cwd=environment.work, env=environment.variables, stdout=log, stderr=log)
        try:
            while True:
                assert process.poll() is None, (environment.folder / "service.log").read_text()
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=10).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait()


def fetch(address: str, fields: dict[str, Any] | None = None) -> str:
    data = None if fields is None else json.dumps(fields).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        text: str = reply.read().decode()
    return text


class TestAllExtras:
    def test_the_service_translates_and_has_its_page(self, full: Environment) -> None:
        with service(full) as address:
            reply = json.loads(fetch(f"{address}/translate", {"q": "der Hund", "source": "de", "target": "en"}))
            assert reply.keys() == {"translatedText"}
            assets = full.site_packages / "headway" / "serve" / "assets"
            files = [path for path in assets.rglob("*") if path.is_file() and path.name != "index.html"]
            assert len(files) > 20
            for path in files:
                assert fetch(f"{address}/page/{path.relative_to(assets).as_posix()}") == path.read_text(
                    encoding="utf-8"
                )
            assert "Headway" in fetch(address)
            assert fetch(f"{address}/page/inspection/attention.js")

    def test_pages_pictures_and_schemas(self, full: Environment) -> None:
        full.headway("inspect", "run/best", "der Hund", "-o", "page.html")
        assert "<style>" in (full.work / "page.html").read_text()
        full.headway("curves", "run", "-o", "curves.png")
        assert (full.work / "curves.png").stat().st_size
        schema = json.loads((ROOT / "recipes" / "schema" / "recipe.json").read_text(encoding="utf-8"))
        assert json.loads(full.headway("schema", "recipe")) == schema

    def test_a_document_is_translated(self, full: Environment) -> None:
        (full.work / "page.md").write_text("# der Hund\n\nDie *Katze*\n")
        full.headway("translate", "run/best", "-i", "page.md", "-o", "page.en.md")
        assert (full.work / "page.en.md").read_text().startswith("# ")

    def test_the_poem_is_in_the_package(self, full: Environment) -> None:
        done = full.run("python", "-c", "from headway.data.builtin.poem import read_poem; print(len(read_poem()))")
        assert int(done.stdout) > 100_000
