"""Hash the code that takes a measurement, so that changed code is measured again.

The hash covers only what ``measure`` uses: the top-level functions, classes and constants that it names, those that
they name in turn, and so on, also in neighboring modules of the package. Verdicts, figures, comments and docstrings may
therefore change without measuring again. Code outside the package (layers, training, search) is not covered: after a
change there, remove the output folder.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.data.store import fingerprint

__all__ = ["code_hash"]


def code_hash(measure: Callable[..., Any]) -> str:
    """Return a hash of everything in its package that ``measure`` uses."""
    package, found = measure.__module__.rpartition(".")[0] + ".", dict[tuple[str, str], str]()
    waiting = [(measure.__module__, measure.__name__)]
    while waiting:
        module, name = waiting.pop()
        node = None if (module.removeprefix(package), name) in found else _top_level(module).get(name)
        if isinstance(node, ast.ImportFrom):
            if node.module is not None and node.module.startswith(package):
                waiting.append(
                    (node.module, next(each.name for each in node.names if name in (each.name, each.asname)))
                )
        elif node is not None:
            found[module.removeprefix(package), name] = ast.dump(_without_docstring(node))
            waiting += [(module, each.id) for each in ast.walk(node) if isinstance(each, ast.Name)]
    return fingerprint(sorted(found.items()))


def _without_docstring(node: ast.stmt) -> ast.stmt:
    """Copy ``node`` without docstrings."""
    node = copy.deepcopy(node)
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each) is not None:
            each.body = each.body[1:]
    return node


def _top_level(module: str) -> dict[str, ast.stmt]:
    """Map each top-level name of a module to the statement that defines it."""
    return _parsed(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> dict[str, ast.stmt]:
    made: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                made[node.name] = node
            case ast.ImportFrom():
                made |= {each.asname or each.name: node for each in node.names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                made |= {each.id: node for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return made
