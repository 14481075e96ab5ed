"""Hashes of code, which records of experiments contain, so that a reader knows which code made a number.

Code is compared token by token: comments, docstrings, line breaks and the version of Python do not matter.

:func:`code_hash` covers what ``measure`` uses in this package: the top-level functions, classes and constants that it
refers to, directly or indirectly. Verdicts and figures can therefore change without a new measurement.
:func:`engine_hash` covers the rest of Headway that takes part in training and searching. It is only recorded: numbers
of an older engine stay valid, and the report says which they are.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from headway.data.store import fingerprint

_ENGINE = ("data", "decode", "engine", "evaluation", "kernels", "models", "nn", "predict", "tasks", "text", "training")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def code_hash(measure: Callable[..., Any]) -> str:
    """Return a hash of all code in the package of ``measure`` that it uses."""
    package, modules = measure.__module__.rpartition(".")[0] + ".", dict[str, dict[str, tuple[ast.stmt, str]]]()
    definitions = dict[tuple[str, str], tuple[str, ...]]()
    waiting = [(measure.__module__, measure.__name__)]
    while waiting:
        module, name = waiting.pop()
        if module not in modules:
            modules[module] = _top_level(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))
        node, code = modules[module].get(name, (None, ""))
        key = (module.removeprefix(package), name)
        if isinstance(node, ast.ImportFrom):
            if node.module is not None and node.module.startswith(package):
                waiting += [(node.module, alias.name) for alias in node.names if name in (alias.name, alias.asname)]
        elif node is not None and key not in definitions:
            definitions[key] = tokens_of(code)
            waiting += [(module, child.id) for child in ast.walk(node) if isinstance(child, ast.Name)]
    return fingerprint(sorted(definitions.items()))


@cache
def engine_hash() -> str:
    """Return a hash of the code that reads data, builds models, trains them and searches with them."""
    package = Path(__file__).parents[1]
    files = sorted(path for part in _ENGINE for path in (package / part).rglob("*.py"))
    return fingerprint([(path.relative_to(package).as_posix(), tokens_of(path.read_text("utf-8"))) for path in files])


@cache
def tokens_of(code: str) -> tuple[str, ...]:
    """Return the tokens of Python code, without comments, docstrings and line breaks; a dedent is an empty token."""
    tokens, line = list[str](), list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if any(part.type != tokenize.STRING for part in line):  # else a docstring
                tokens += [part.string for part in line]
            line = []
        elif token.type == tokenize.DEDENT:
            tokens.append("")
        elif token.type not in _LAYOUT:
            line.append(token)
    return tuple(tokens)


@cache
def _top_level(code: str) -> dict[str, tuple[ast.stmt, str]]:
    """Map each top-level name of a module to the statement that defines it and to its code."""
    defined = dict[str, tuple[ast.stmt, str]]()
    for node in ast.parse(code).body:
        names = list[str]()
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names = [node.name]
            case ast.ImportFrom():
                names = [alias.asname or alias.name for alias in node.names]
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [child.id for target in targets for child in ast.walk(target) if isinstance(child, ast.Name)]
        defined |= dict.fromkeys(names, (node, ast.get_source_segment(code, node) or ""))
    return defined
