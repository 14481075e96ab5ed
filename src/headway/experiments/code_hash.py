"""Hash the code that takes a measurement, so that a change of this code triggers a new measurement.

The hash covers only the code that ``measure`` uses: the top-level functions, classes and constants that it refers to,
directly or indirectly, in its own module and in other modules of the package. Verdicts, figures, comments and
docstrings can therefore change without a new measurement. Code outside the package (layers, training, search) is not
covered: after a change there, remove the output folder.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.data.store import fingerprint


def code_hash(measure: Callable[..., Any]) -> str:
    """Return a hash of all code in the package of ``measure`` that it uses."""
    package, modules = measure.__module__.rpartition(".")[0] + ".", dict[str, dict[str, ast.stmt]]()
    definitions = dict[tuple[str, str], str]()
    waiting = [(measure.__module__, measure.__name__)]
    while waiting:
        module, name = waiting.pop()
        if module not in modules:
            modules[module] = _top_level(Path(str(import_module(module).__file__)))
        node, key = modules[module].get(name), (module.removeprefix(package), name)
        if isinstance(node, ast.ImportFrom):
            if node.module is not None and node.module.startswith(package):
                waiting += [(node.module, alias.name) for alias in node.names if name in (alias.name, alias.asname)]
        elif node is not None and key not in definitions:
            definitions[key] = ast.dump(node)
            waiting += [(module, child.id) for child in ast.walk(node) if isinstance(child, ast.Name)]
    return fingerprint(sorted(definitions.items()))


def _top_level(path: Path) -> dict[str, ast.stmt]:
    """Map each top-level name of a module to the statement that defines it, without docstrings."""
    tree, defined = ast.parse(path.read_text(encoding="utf-8")), dict[str, ast.stmt]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                defined[node.name] = node
            case ast.ImportFrom():
                defined |= {alias.asname or alias.name: node for alias in node.names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [child.id for target in targets for child in ast.walk(target) if isinstance(child, ast.Name)]
                defined |= dict.fromkeys(names, node)
    return defined
