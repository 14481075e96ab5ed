"""The direction of imports, the files that may import each third-party library, and packages that import fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import headway

PACKAGE = Path(headway.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up: a part may import itself and the parts on lower levels.
LEVELS = [
    {"errors", "contention", "notebook_html", "parent_process", "report_page", "torchrun", "version"},
    {"storage", "config", "hardware", "torch_internals"},
    {"kinds", "weights"},
    {"kernels"},
    {"nn", "text", "decode"},
    {"models", "data", "evaluation"},
    {"engine", "jobs"},
    {"bundle"},
    {"interop", "diagrams"},
    {"training", "predict"},
    {"tasks", "documents"},
    {"distillation", "inspection", "corpus"},
    {"calls"},
    {"experiments"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {part: level for level, parts in enumerate(LEVELS) for part in parts}

ALLOWED = {
    "tokenizers": ["text/"],
    "sacrebleu": ["evaluation/"],
    "sentencex": ["text/sentences.py"],
    "regex": ["predict/translation/segment.py", "text/normalization.py", "text/words.py"],
    "babel": ["data/builtin/"],
    "typer": ["cli/"],
    "tomli_w": ["config.py"],
    "filelock": ["storage.py"],
    "loky": ["predict/translation/pool.py"],
    "cloudpickle": ["predict/translation/pool.py"],
    "rich": ["calls/progress.py", "cli/"],
    "IPython": ["calls/progress.py"],
    "jinja2": ["corpus/cleaning/report.py", "experiments/report.py"],
    "ftfy": ["corpus/cleaning/repairs.py"],
    "py3langid": ["corpus/cleaning/language.py", "serve/languages.py"],
    "safetensors": ["weights.py", "engine/shortlist_file.py", "predict/translation/shortlisting.py"],
    "tensorboard": ["training/report.py"],
    "matplotlib": ["inspection/", "experiments/"],
    "scipy": ["experiments/verdicts.py"],
    "sentencepiece": ["text/sentencepiece.py"],
    "huggingface_hub": ["interop/hub/download.py"],
    "ctranslate2": ["interop/ctranslate2.py"],
    "yaml": ["interop/marian.py"],
    "onnx": ["interop/onnx.py", "interop/onnx_graph.py", "interop/onnx_models.py"],
    "onnxruntime": ["interop/onnx.py"],
    "zstandard": ["data/readers.py", "jobs/inputs.py", "jobs/join.py", "jobs/plan.py"],
    "lxml": ["documents/"],
    "markdown_it": ["documents/markdown.py"],
    "translate": ["documents/gettext_catalog.py"],
    "numba": ["kernels/"],
    "llvmlite": ["kernels/"],
    "torch": [
        *("nn/", "models/", "decode/", "training/", "inspection/", "interop/", "serve/", "diagrams/"),
        *(
            "bundle.py",
            "weights.py",
            "hardware.py",
            "torch_internals.py",
            "engine/",
            "kernels/",
            "predict/",
            "tasks/",
            "experiments/",
        ),
    ],
}


@dataclass(frozen=True)
class SourceFile:
    """What the tests ask about a file, so that each file is parsed once.

    Attributes:
        imports: The full name of every imported module, including imports in functions and for type checking.
        imports_at_run_time: The same without imports for type checking.
        classes: The names of its classes.
        asked_kinds: The lines that ask which architecture or task an object has.
    """

    imports: list[str]
    imports_at_run_time: list[str]
    classes: list[str]
    asked_kinds: list[int]


@cache
def read_source(path: Path) -> SourceFile:
    package = ".".join(["headway", *path.relative_to(PACKAGE).parts[:-1]])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    return SourceFile(
        imports(nodes, package),
        imports(walk_at_run_time(tree), package),
        [node.name for node in nodes if isinstance(node, ast.ClassDef)],
        asked_kinds(nodes),
    )


def walk_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those in ``if TYPE_CHECKING:``."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        is_skipped = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        left += node.orelse if is_skipped else ast.iter_child_nodes(node)  # type: ignore[attr-defined]


def imports(nodes: Iterable[ast.AST], package: str) -> list[str]:
    """Return the full name of every module that is imported."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_parts(path: Path) -> set[str]:
    """Return the parts of Headway that a file imports."""
    modules = [name.split(".") for name in read_source(path).imports]
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
    assert imports(ast.walk(ast.parse(line)), package) == [expected]


def test_every_part_has_a_level() -> None:
    assert {part_of(path) for path in FILES} <= LEVEL_OF.keys() | {"__init__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return  # the door: it names what is inside, and loads it when asked
    upward = {other for other in own_parts(path) - {part} if LEVEL_OF[other] >= LEVEL_OF[part]}
    assert upward == set()


def imported_files(path: Path, modules: dict[str, Path]) -> set[Path]:
    """Return the files of Headway that a file imports when it runs, also in functions."""
    names = [name for name in read_source(path).imports_at_run_time if name.startswith("headway")]
    return {modules[name if name in modules else name.rpartition(".")[0]] for name in names} - {path}


def circles(graph: dict[Path, set[Path]]) -> list[Path]:
    """Return the nodes that are left when nodes without edges, and the edges to them, are removed repeatedly."""
    left = {node: set(edges) for node, edges in graph.items()}
    while ends := [node for node, edges in left.items() if not edges & left.keys()]:
        for node in ends:
            del left[node]
    return sorted(left)


def test_the_check_finds_circles() -> None:
    a, b, c = map(Path, "abc")
    assert circles({a: {b}, b: {c}, c: set()}) == []
    assert circles({a: {b}, b: {c}, c: {b}}) == [a, b, c]


def test_no_files_import_each_other() -> None:
    """Not even in functions: what two files need of each other belongs in a third one."""
    dotted = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES}
    modules = {name.removesuffix(".__init__"): path for path, name in dotted.items()}
    graph = {path: imported_files(path, modules) for path in FILES}
    assert [path.relative_to(PACKAGE).as_posix() for path in circles(graph)] == []


def test_training_knows_no_decoding() -> None:
    known = set().union(*(own_parts(path) for path in FILES if part_of(path) == "training"))
    assert {"data", "models", "bundle"} <= known
    assert not known & {"decode", "predict", "tasks"}


def test_search_is_independent_of_the_architecture() -> None:
    known = set().union(*(own_parts(path) for path in FILES if part_of(path) == "decode"))
    assert known <= {"errors", "config", "hardware", "decode"}


def test_commands_share_code_only_through_helpers() -> None:
    prefix = "headway.cli.commands."
    commands = [path for path in FILES if path.is_relative_to(PACKAGE / "cli" / "commands")]
    assert len(commands) > 20
    assert [
        (path.name, name) for path in commands for name in read_source(path).imports if name.startswith(prefix)
    ] == []


# The packages that compute. Commands reach them through headway.calls, headway.predict and other packages that Python
# reaches, too, so that nothing is computed only by a command. Each exception says why it is none.
_COMPUTES = {
    *("bundle", "data", "decode", "diagrams", "distillation", "engine", "evaluation", "kernels", "models", "nn"),
    *("text", "training"),
}
_NOT_LOGIC = {
    "headway.bundle.read_config": "options are checked by what the model in a folder does",
    "headway.data.readers.decode_lines": "reads standard input",
    "headway.data.readers.line_blocks": "reads standard input",
    "headway.data.readers.read_byte_lines": "reads input files",
    "headway.data.readers.read_lines": "reads input files",
    "headway.data.readers.text_size": "the length of a progress bar",
    "headway.data.documents": "reads the file of --data",
    "headway.data.multiple_choice": "reads the file of --choices",
    "headway.data.store_builder.Shard": "parses --shard",
    "headway.decode.DecodingOptions": "the class of the options of searches",
    "headway.decode.generation_options": "the class of the options of text generation",
    "headway.decode.request": "the classes of the options of searches",
    "headway.engine.shortlist_file.write_shortlist": "writes a file of a model folder",
    "headway.evaluation.class_table": "formats a report",
    "headway.evaluation.confusion_table": "formats a report",
    "headway.kernels.start_compiling": "starts while PyTorch is imported, before anything is called",
    "headway.text.visible_tokens.make_visible": "formats tokens",
    "headway.text.tokenizer.readable_piece": "formats tokens",
    "headway.training.previous_run.move_previous_run_aside": "--fresh of the quickstart",
}
# Commands about this machine, the formats of files, and model folders, whose functions are those of Python, too.
_CALLED_AS_IN_PYTHON = {
    "average.py": {"headway.training.averaging.average_checkpoints"},
    "compare.py": {"headway.evaluation.compare_labels"},
    "doctor.py": {
        "headway.engine.choose_precision",
        "headway.kernels",
        "headway.kernels.compile_ahead.compile_decoding_kernels",
    },
    "export.py": {"headway.bundle.load_bundle"},
    "import_.py": {"headway.diagrams.model_card.add_drawing", "headway.engine.int8_check.write_int8_check"},
    "learn_bpe.py": {
        f"headway.text.bpe_learning.{name}" for name in ("count_words", "initial_symbols", "learn_merges")
    },
    "shortlist.py": {"headway.bundle.Bundle"},
    "tokenize.py": {"headway.bundle.load_bundle"},
}
_LISTS_EVERYTHING = {"schema.py", "smaller_folders.py"}  # the schemas of all formats; model folders in other forms


def computing_imports(path: Path) -> set[str]:
    """Return what a file imports, when it runs, from the packages that compute, without what is in the tables."""
    names = [name for name in read_source(path).imports_at_run_time if name.startswith("headway.")]
    found = {name for name in names if name.split(".")[1] in _COMPUTES}
    known = _NOT_LOGIC.keys() | _CALLED_AS_IN_PYTHON.get(path.name, set())
    return {name for name in found if name not in known and name.rpartition(".")[0] not in known}


def test_commands_compute_nothing_that_python_cannot_reach() -> None:
    files = [path for path in FILES if part_of(path) == "cli" and path.name not in _LISTS_EVERYTHING]
    assert {path.name: names for path in files if (names := computing_imports(path))} == {}, (
        "move what is computed to a function of headway that the command calls; a function that Python users call, "
        "too, has a row in _CALLED_AS_IN_PYTHON"
    )
    used = {name for path in FILES if part_of(path) == "cli" for name in read_source(path).imports}
    known = _NOT_LOGIC.keys() | {name for names in _CALLED_AS_IN_PYTHON.values() for name in names}
    modules = {name.rpartition(".")[0] for name in used}
    assert known <= used | modules  # exceptions that are needed no longer


@pytest.mark.parametrize("library", ALLOWED)
def test_third_party_libraries_are_imported_only_in_their_places(library: str) -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        for name in read_source(path).imports
        if library in name.split(".") and not name.startswith("headway.")
    }
    heavy_inside_functions = {"cli/commands/doctor.py"} if library == "torch" else set()
    outside = {user for user in users - heavy_inside_functions if not user.startswith(tuple(ALLOWED[library]))}
    assert users
    assert outside == set()


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has imported after running ``code``."""
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


def test_every_class_name_exists_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in read_source(path).classes:
            homes.setdefault(name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


# Files that may ask for the architecture or the task. In all other files, facts come from the registries.
_KNOWS_KINDS = ("diagrams/", "models/", "tasks/", "engine/", "interop/", "experiments/", "bundle.py")
_KINDS = {
    *("Transformer", "RecurrentModel", "EncoderClassifier", "DecoderOnly", "RecurrentLM"),
    *("TransformerConfig", "RecurrentConfig", "ClassifierConfig", "DecoderOnlyConfig", "RecurrentLMConfig"),
    *("Bundle", "ClassifierBundle", "LanguageModelBundle"),
    *("TranslationTask", "ClassificationTask", "TranslationRecipe", "ClassificationRecipe", "Translator", "Classifier"),
}
_KIND_NAMES = {
    *("transformer", "recurrent", "classifier", "decoder_only", "recurrent_lm"),
    *("translation", "classification", "language_model"),
}
# hasattr, and getattr with a default, may ask for an attribute that some versions of a library lack, or for an optional
# attribute of a protocol. Other uses could distinguish architectures or tasks.
_ALLOWED_ATTRIBUTES = {
    *("get_capabilities", "__file__"),  # PyTorch
    *("sched_getaffinity", "pthread_kill", "register_at_fork"),  # Python: not on every system
    "threads",  # of a thread-local object
    *("func", "__module__", "__name__"),  # of a callable
    *("columns", "column_names", "features", "names"),  # of the tables of other packages
    "batch_per_thread",  # optional in the search protocol
    "bundle",  # of a model with its tokenizers
    "num_heads",  # of a layer with attention
}


def _names(node: ast.AST) -> set[str]:
    """Return every name in an expression, without the modules before it."""
    nodes = list(ast.walk(node))
    return {each.id for each in nodes if isinstance(each, ast.Name)} | {
        each.attr for each in nodes if isinstance(each, ast.Attribute)
    }


def _constants(node: ast.AST) -> set[object]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, kinds]):
            return bool(_names(kinds) & _KINDS)
        case ast.Call(func=ast.Name("hasattr"), args=[_, name]) | ast.Call(func=ast.Name("getattr"), args=[_, name, _]):
            return not _constants(name) <= _ALLOWED_ATTRIBUTES or not _constants(name)
        case ast.Compare():  # of kinds, and of classes: type(model) is Transformer
            by_name = _KINDS if "__name__" in _names(node) else set[str]()
            return bool(_constants(node) & (_KIND_NAMES | by_name)) or bool(_names(node) & _KINDS)
        case ast.MatchClass():
            return bool(_names(node.cls) & _KINDS)
        case ast.MatchValue():
            return bool(_constants(node) & _KIND_NAMES)
        case ast.Attribute(attr="singledispatch" | "__class__"):
            return True
    return False


def asked_kinds(nodes: Iterable[ast.AST]) -> list[int]:
    """Return the lines that ask in any way which architecture or task an object has."""
    return [node.lineno for node in nodes if _asks(node)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(m, (int, Transformer))",
        "isinstance(m, models.transformer.Transformer)",
        "t.kind == 'translation'",
        "t.kind in ('translation', 'other')",
        "type(m) is Transformer",
        "type(m).__name__ == 'Transformer'",
        "m.__class__",
        "hasattr(m, 'labels')",
        "getattr(m, 'labels', None)",
        "hasattr(m, name)",
        "match m:\n    case ClassifierConfig(): pass",
        "match m.kind:\n    case 'classifier' | 'x': pass",
    ],
)
def test_the_check_sees_every_way_of_asking(code: str) -> None:
    assert asked_kinds(ast.walk(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["isinstance(m, nn.Module)", "a.kind != b.kind", "hasattr(t, 'get_capabilities')", "getattr(o, name)"]
)
def test_the_check_lets_other_questions_pass(code: str) -> None:
    assert asked_kinds(ast.walk(ast.parse(code))) == []


def test_only_registries_know_architectures_and_tasks() -> None:
    asking = {
        name: lines
        for path in FILES
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(_KNOWS_KINDS)
        and (lines := read_source(path).asked_kinds)
    }
    assert asking == {}
