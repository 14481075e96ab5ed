"""The direction of imports, one home for each third party, and doors that open fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headway

PACKAGE = Path(headway.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up, as in docs: a part may import the parts of lower lines, and itself.
LEVELS = [
    {"errors"},
    {"storage", "config", "hardware", "deprecation"},
    {"kernels"},
    {"nn", "text", "decode"},
    {"models", "data", "evaluate"},
    {"engine", "inference"},
    {"bundle"},
    {"interop"},
    {"train", "predict"},
    {"tasks"},
    {"distill", "inspection"},
    {"experiments"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {part: level for level, parts in enumerate(LEVELS) for part in parts}

HOMES = {
    "tokenizers": ["text/"],
    "sacrebleu": ["evaluate/"],
    "sentencex": ["predict/segment.py"],
    "babel": ["data/builtin/"],
    "typer": ["cli/"],
    "tomli_w": ["config.py"],
    "filelock": ["storage.py"],
    "rich": ["cli/"],
    "safetensors": ["bundle.py", "predict/shortlisting.py"],
    "tensorboard": ["train/report.py"],
    "matplotlib": ["inspection/", "experiments/"],
    "sentencepiece": ["text/sentencepiece.py"],
    "ctranslate2": ["interop/ctranslate2.py"],
    "onnx": ["interop/onnx.py", "interop/onnx_graph.py", "interop/onnx_classifier.py"],
    "onnxruntime": ["interop/onnx.py"],
    "zstandard": ["data/readers.py"],
    "numba": ["kernels/"],
    "llvmlite": ["kernels/"],
    "torch": [
        *("nn/", "models/", "decode/", "train/", "inspection/", "interop/", "serve/"),
        *("bundle.py", "hardware.py", "inference/", "engine/", "kernels/", "predict/", "tasks/", "experiments/"),
    ],
}


def imports(tree: ast.AST, package: str) -> list[str]:
    """Every module that is imported anywhere, inside functions and for type checking as well, by its full name."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def imports_of(path: Path) -> list[str]:
    package = ".".join(["headway", *path.relative_to(PACKAGE).parts[:-1]])
    return imports(ast.parse(path.read_text(encoding="utf-8")), package)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_parts(path: Path) -> set[str]:
    """The parts of Headway that a file imports."""
    modules = [name.split(".") for name in imports_of(path)]
    return {module[1] for module in modules if module[0] == "headway" and len(module) > 1} & LEVEL_OF.keys()


@pytest.mark.parametrize(
    ("line", "package", "expected"),
    [
        ("import headway.cli.text", "headway.data", "headway.cli.text"),
        ("from headway import predict", "headway.data", "headway.predict"),
        ("from headway.cli import app", "headway.data", "headway.cli.app"),
        ("from . import store", "headway.data", "headway.data.store"),
        ("from ..cli import app", "headway.data", "headway.cli.app"),
        ("if TYPE_CHECKING:\n    import headway.cli", "headway.data", "headway.cli"),
        ("def f():\n    import headway.cli", "headway.data", "headway.cli"),
    ],
)
def test_the_check_sees_every_kind_of_import(line: str, package: str, expected: str) -> None:
    assert imports(ast.parse(line), package) == [expected]


def test_every_part_has_a_level() -> None:
    assert {part_of(path) for path in FILES} <= LEVEL_OF.keys() | {"__init__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return  # the door: it names what is inside, and loads it when asked
    upward = {other for other in own_parts(path) - {part} if LEVEL_OF[other] >= LEVEL_OF[part]}
    assert upward == set()


def test_training_knows_no_decoding() -> None:
    known = set().union(*(own_parts(path) for path in FILES if part_of(path) == "train"))
    assert {"data", "models", "bundle"} <= known
    assert not known & {"decode", "predict", "tasks"}


def test_search_knows_no_architecture() -> None:
    known = set().union(*(own_parts(path) for path in FILES if part_of(path) == "decode"))
    assert known <= {"errors", "config", "deprecation", "decode"}


@pytest.mark.parametrize("library", HOMES)
def test_each_third_party_has_one_home(library: str) -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for name in imports_of(path)
        if library in name.split(".") and not name.startswith("headway.")
    }
    heavy_inside_functions = {"cli/doctor.py"} if library == "torch" else set()
    outside = {user for user in users - heavy_inside_functions if not user.startswith(tuple(HOMES[library]))}
    assert users
    assert outside == set()


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after running ``code``."""
    script = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_headway_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pydantic", "tokenizers", "typer", "rich", "sacrebleu", "babel"}
    assert not loaded_after("import headway; headway.HeadwayError") & heavy


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import headway.cli\nsys.argv = ['headway', '--help']\n"
        "try:\n    headway.cli.main()\nexcept SystemExit as end:\n    assert not end.code"
    )
    loaded = loaded_after(code)
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "tokenizers", "sacrebleu", "babel", "tensorboard", "matplotlib"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        headway.lod  # noqa: B018
    assert set(headway.__all__) >= {"load", "Translator", "Translation", "HeadwayError"}
    assert callable(headway.load)


# Class names that still exist twice. The list only shrinks.
KNOWN_DUPLICATES = {
    *("Alternative", "Attended", "Batch", "Candidate", "Ranked", "Score", "Work", "_Progress"),
}


def test_every_class_name_exists_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1 and name not in KNOWN_DUPLICATES} == {}


# Where an architecture or a task may be asked for: elsewhere, facts come from the registries.
_KNOWS_KINDS = ("models/", "tasks/", "engine/", "interop/", "experiments/", "bundle.py")
_KINDS = {
    *("Transformer", "RecurrentModel", "EncoderClassifier"),
    *("TransformerConfig", "RecurrentConfig", "ClassifierConfig", "Bundle", "ClassifierBundle"),
}
_KIND_NAMES = {"transformer", "recurrent", "classifier", "translation", "classification"}


def asked_kinds(tree: ast.AST) -> list[int]:
    """The lines that ask which architecture or task something has: isinstance, match, or a comparison with a name."""
    lines = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            names = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            lines += [node.lineno] if names & _KINDS else []
        elif isinstance(node, ast.MatchClass):
            names = {each.id for each in ast.walk(node.cls) if isinstance(each, ast.Name)}
            lines += [node.lineno] if names & _KINDS else []
        elif isinstance(node, (ast.Compare, ast.MatchValue)):
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.value]
            values = {each.value for each in parts if isinstance(each, ast.Constant)}
            lines += [node.lineno] if values & _KIND_NAMES else []
    return lines


def test_the_check_sees_every_way_of_asking() -> None:
    asking = "isinstance(m, (int, Transformer)); t.kind == 'translation'\nmatch m:\n    case ClassifierConfig(): pass"
    assert asked_kinds(ast.parse(asking)) == [1, 1, 3]
    assert asked_kinds(ast.parse("isinstance(m, nn.Module); a.kind != b.kind")) == []


# Files that still ask; remove a line when its file is done.
_STILL_ASK = {
    *("cli/evaluate.py", "cli/export.py", "cli/info.py", "cli/tokenize.py"),
    *("predict/alignment.py", "predict/loading.py"),
}


def test_only_registries_know_architectures_and_tasks() -> None:
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if not path.relative_to(PACKAGE).as_posix().startswith(_KNOWS_KINDS)
        and asked_kinds(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert asking == _STILL_ASK
