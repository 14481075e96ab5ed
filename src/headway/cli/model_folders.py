"""Arguments and options that name a model: a model folder, or a model of the Hugging Face Hub such as ``hf:gpt2``.

A command marks these parameters with :data:`MODEL`, as in ``Annotated[Path, typer.Argument(help=...), MODEL]``, and
always receives a folder. After all arguments have been parsed, a model name is replaced with the folder of the
converted model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, get_args, get_type_hints

from headway.interop.hub.names import SCHEMES

MODEL = object()
"""Marks the type of a parameter that names a model or a list of models."""


def with_model_folders(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the names of models in its arguments replaced by model folders."""

    @wraps(command)
    def run(*arguments: Any, **keywords: Any) -> None:
        if any(_is_name(path) for value in keywords.values() for path in _as_list(value)):
            hints = get_type_hints(command, include_extras=True)
            for name in [name for name, hint in hints.items() if MODEL in get_args(hint)]:
                value = keywords[name]
                folders = [folder_of_model(path) if _is_name(path) else path for path in _as_list(value)]
                keywords[name] = folders if isinstance(value, list) else folders[0]
        command(*arguments, **keywords)

    return run


def folder_of_model(source: Path) -> Path:
    """Return the folder of a model. A model from the Hub is downloaded and converted if necessary."""
    from headway.interop.hub import model_folder
    from headway.interop.hub.converted import find_converted
    from headway.interop.hub.names import parse_model_source

    model = parse_model_source(source)
    if not isinstance(model, Path) and find_converted(model) is None:
        prepare_client()
        if sys.stderr.isatty():
            print(f"headway: downloading and converting {model} (only once)", file=sys.stderr)
    return model_folder(source)


def prepare_client() -> None:
    """Configure the Hub client to show progress only on a terminal and to print no messages of its own."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _is_name(value: object) -> bool:
    return isinstance(value, Path) and value.as_posix().startswith(tuple(f"{scheme}:" for scheme in SCHEMES))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
