"""Take away each private name of Numba that Headway uses, and train and translate without it.

    python tests/private_names.py                  # every name, one after another
    python tests/private_names.py numba _reduce    # names that contain one of these words

A private name may disappear or change in any release. A run without it must end well: either its results are the usual
ones, bit for bit, or they are the results of a slower form that a warning names. Each run is a fresh interpreter
that trains a tiny model for a few steps and translates with another one.

The names are found in the source code of Headway (:func:`numba_names`); :data:`LISTED` has more.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headway

SOURCE = Path(headway.__file__).parent / "kernels"  # nothing else may import Numba
# Modules of Numba whose names its documentation describes. Everything else is private.
PUBLIC = {"numba", "numba.core.config", "numba.core.types", "numba.extending", "numba.types"}

# Private attributes of objects, for which the source code does not show the class: where each is defined. None: it is
# set in a constructor, and tests/kernels/test_code_cache.py takes it away.
DEFINED_IN: dict[str, tuple[str, str] | None] = {
    "_cache": None,
    "_compile_for_args": ("numba.core.dispatcher", "Dispatcher._compile_for_args"),
    "_load_overload": ("numba.core.caching", "Cache._load_overload"),
}
# More private names: the module, and the attribute, which may be one of a class.
LISTED: list[tuple[str, str]] = [
    *(("numba.core.caching", f"Cache.{name}") for name in ("load_overload", "save_overload", "flush", "cache_path")),
    ("numba.core.compiler", "CompileResult._rebuild"),
    ("numba.core.compiler", "CompileResult._reduce"),
    ("numba.core.dispatcher", "Dispatcher.enable_caching"),
    ("numba.core.environment", "_rebuild_env"),
    ("numba.np.ufunc.parallel", "_launch_threads"),
]

WAYS = ("renamed", "deleted", "changed")


@dataclass(frozen=True)
class Case:
    """A private name, and what happens to it.

    Attributes:
        module: The module that defines the name.
        attribute: The name, or ``Class.name``.
        way: "renamed": only Headway no longer finds it, and the package itself works. "deleted": nothing finds it.
            "changed": calling it fails.
    """

    module: str
    attribute: str
    way: str

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}:{self.way}"

    def apply(self) -> None:
        """Take the name away in this process."""
        module = importlib.import_module(self.module)
        *path, name = self.attribute.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        if not isinstance(
            owner, types.ModuleType
        ):  # the class of an object, or one of its base classes, defines the name
            owner = owner if isinstance(owner, type) else type(owner)
            owner = next(base for base in owner.__mro__ if name in vars(base))
        if self.way == "deleted":
            delattr(owner, name)
        elif self.way == "changed":
            setattr(owner, name, _changed)
        else:
            renamed = types.ModuleType(self.module)
            renamed.__dict__.update({key: value for key, value in vars(module).items() if key != name})
            sys.modules[self.module] = renamed
            parent, _, child = self.module.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, renamed)


def _changed(*_: object, **__: object) -> None:
    raise TypeError("the arguments of this private name have changed")


def numba_names() -> list[tuple[str, str]]:
    """Return the private names of Numba in the source code of Headway, as modules and attributes."""
    found: set[tuple[str, str]] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        found |= names_in(ast.parse(path.read_text(encoding="utf-8")), path)
    return sorted(found)


def names_in(tree: ast.Module, path: Path) -> set[tuple[str, str]]:
    """Return the private names of Numba in the source code of one file."""
    bound: dict[str, str] = {}  # local name: dotted name in Numba
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {x.asname or "numba": x.name for x in node.names if x.name.split(".")[0] == "numba"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):  # other names for the same, such as `_launch: Any = parallel._launch_threads`
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            dotted = _dotted(node.value, bound)
            bound |= {node.target.id: dotted} if dotted else {}
    for dotted in bound.values():
        found |= _private(dotted)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        dotted = _dotted(node, bound)
        if dotted is not None:
            found |= _private(dotted)
        elif node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in own | _own_names(tree):
            assert node.attr in DEFINED_IN, f"{path}:{node.lineno}: where does Numba define {node.attr}? See DEFINED_IN"
            defined_in = DEFINED_IN[node.attr]
            found |= {defined_in} if defined_in else set()
    return found


def _own_names(tree: ast.Module) -> set[str]:
    """Return the attributes of ``self`` and ``cls``, and the names that a module assigns."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }


def _dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        start = _dotted(node.value, bound)
        return start and f"{start}.{node.attr}"
    return None


def _private(dotted: str) -> set[tuple[str, str]]:
    """Split a dotted name into its module and the rest, unless it is public or a module."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length])).__name__
        except ImportError:
            continue
        rest = parts[length:]
        is_public = module in PUBLIC and not any(part.startswith("_") for part in rest if part != "__version__")
        return set() if is_public or not rest else {(module, ".".join(rest))}
    return set()


def cases() -> list[Case]:
    """Return each name with each way to take it away. An attribute of a class cannot be renamed for Headway alone."""
    return [
        Case(module, attribute, way)
        for module, attribute in numba_names() + LISTED
        for way in WAYS
        if way != "renamed" or "." not in attribute
    ]


@dataclass(frozen=True)
class Outcome:
    """What a run produced.

    Attributes:
        code: The exit code.
        losses: The losses of training.
        translations: The translations, with their scores.
        compiled: How many kernels were compiled instead of loaded from the cache.
        errors: Everything on standard error.
    """

    code: int
    losses: object
    translations: object
    compiled: int
    errors: str

    @property
    def warnings(self) -> list[str]:
        """The lines of warnings."""
        return [line for line in self.errors.splitlines() if line.startswith("headway: warning:")]


@dataclass
class Workload:
    """A tiny corpus and a tiny model in a folder, and the results in each form that a warning may name."""

    folder: Path

    def __post_init__(self) -> None:
        source = [f"das {a} {b}" for a in ("rote", "grüne", "alte") for b in ("Haus", "Boot", "Tor", "Dach")]
        target = [f"the {a} {b}" for a in ("red", "green", "old") for b in ("house", "boat", "gate", "roof")]
        for name, lines in {"x.de": source, "x.en": target}.items():
            (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (self.folder / "recipe.toml").write_text(
            f'[data]\nfolder = "{self.folder}"\ntrain = [{{ files = ["x.de", "x.en"] }}]\n'
            'dev = { files = ["x.de", "x.en"] }\nmax_tokens = 100\n[tokenizer]\nvocab_size = 300\n'
            "[model]\nd_model = 64\nnum_heads = 2\nd_ff = 64\nencoder_layers = 1\ndecoder_layers = 1\ndropout = 0.1\n"
            "[optimizer]\nwarmup_steps = 4\n"
            '[training]\nsteps = 6\nlog_every = 1\ndevice = "cpu"\n'
            "[validation]\nevery = 6\n[checkpoints]\naverage = 0\n",
            encoding="utf-8",
        )
        self.usual = self.run(None)
        assert self.usual.code == 0, self.usual.errors
        self.usual = self.run(None)  # now all kernels are in the cache
        self.forms = [self.usual, self.run(None, {"HEADWAY_CPU_FEATURES": "none"})]

    def run(self, case: Case | None, environment: dict[str, str] | None = None) -> Outcome:
        """Train and translate in a fresh interpreter without the name of ``case``."""
        with tempfile.TemporaryDirectory(dir=self.folder) as run:
            command = [sys.executable, __file__, "--run", str(case or ""), str(self.folder), run]
            ended = subprocess.run(
                command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=600
            )
            found = json.loads(ended.stdout) if ended.returncode == 0 else {}
        return Outcome(
            ended.returncode,
            found.get("losses"),
            found.get("translations"),
            found.get("compiled", 0),
            ended.stderr,
        )

    def fault(self, case: Case) -> str | None:
        """Run ``case`` and return what is wrong with its outcome, or None."""
        outcome = self.run(case)
        return self.fault_of(case, outcome)

    def fault_of(self, case: Case, outcome: Outcome) -> str | None:
        """Return what is wrong with the outcome of ``case``, or None."""
        if outcome.code != 0 or "Traceback" in outcome.errors:
            return f"it ended with {outcome.code}: {outcome.errors[-2000:]}"
        if outcome.losses not in [form.losses for form in self.forms]:
            return f"other losses than in any form: {outcome.losses}"
        if outcome.translations not in [form.translations for form in self.forms]:
            return f"other translations than in any form: {outcome.translations}"
        is_usual = (outcome.losses, outcome.translations) == (self.usual.losses, self.usual.translations)
        package, name = case.module.partition(".")[0], case.attribute.rpartition(".")[2]
        if not (is_usual and outcome.compiled == 0) and not any(
            package in line.lower() or name in line for line in outcome.warnings
        ):
            return f"it is slower, and no warning says so (compiled: {outcome.compiled}, usual results: {is_usual})"
        if len(outcome.warnings) != len(set(outcome.warnings)):
            return "a warning is repeated"
        return None


def _run(case: str, folder: Path, run: Path) -> None:
    """Train and translate in this process; print the numbers as JSON."""
    if case:
        Case(*case.split(":")).apply()
    import contextlib
    import io

    from headway.cli import main

    def command(*words: object) -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        sys.argv = ["headway", *map(str, words)]
        with contextlib.redirect_stdout(out):
            try:
                main()
            except SystemExit as end:
                if end.code:
                    raise
        out.flush()
        return out.buffer.getvalue().decode()

    command("train", folder / "recipe.toml", "--run", run / "run")
    if not (folder / "model").exists():
        (run / "run" / "best").rename(folder / "model")
    lines = (run / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    translations = command("translate", folder / "model", "das rote Haus", "--format", "json", "--max-length", 20)
    print(json.dumps({"losses": losses, "translations": translations, "compiled": _count_compiled()}))


def _count_compiled() -> int:
    """Return how many kernels were compiled in this process."""
    import gc

    if "headway.kernels.jit" not in sys.modules:
        return 0
    stats = [x.stats for x in gc.get_objects() if type(x).__name__ == "CPUDispatcher" and _is_ours(x)]
    return sum(sum(each.cache_misses.values()) for each in stats)


def _is_ours(dispatcher: Any) -> bool:
    return str(dispatcher.py_func.__module__).startswith("headway.")


def main() -> int:
    """Run the cases and print one line for each."""
    if sys.argv[1:2] == ["--run"]:
        _run(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description="Train and translate without each private name.")
    parser.add_argument("words", nargs="*", help="only names that contain one of these words; default: all")
    words = parser.parse_args().words
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder))
        for case in cases():
            if words and not any(word in str(case) for word in words):
                continue
            outcome = workload.run(case)
            fault = workload.fault_of(case, outcome)
            faults += fault is not None
            print(f"{'FAULT' if fault else 'ok':<6} {case}", flush=True)
            for line in [fault] if fault else outcome.warnings:
                print(f"       {line}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
