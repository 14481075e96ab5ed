"""``headway models``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.model_folders import prepare_client
from headway.errors import ConfigError, HeadwayError

GROUP = CommandGroup.DEPLOY


def models(
    update: Annotated[
        bool, typer.Option("--update", help="Check the Hub for newer versions, and download and convert them.")
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="A model to delete, such as hf:gpt2; may be repeated."),
    ] = None,
    format_: options.FormatOption = "text",
) -> None:
    """List the models of the Hugging Face Hub that have been converted, with their sizes, or update or remove them.

    Each of them is a model folder. Commands and Python functions download and convert a model such as hf:gpt2 once, and
    later load it without contacting the Hub. --update checks the Hub for newer versions. A commit (hf:NAME@COMMIT)
    never changes. Removing a model does not remove the downloaded files in the Hub client's cache.
    """
    from headway.interop.hub.converted import converted_models, remove_converted
    from headway.interop.hub.names import HubName

    if update and remove:
        raise ConfigError("--update and --remove cannot be combined; use one of them")
    if remove:
        for word in remove:
            print(f"removed: {remove_converted(HubName.parse(word)).folder}")
        return
    if update:
        _update()
        return
    listed = converted_models()
    width = max((len(str(model.name)) for model in listed), default=0)
    for model in listed:
        if format_ == "json":
            values = {"commit": model.commit, "bytes": model.num_bytes, "folder": str(model.folder)}
            print(json.dumps({"name": str(model.name), **values}))
        else:
            size = f"{model.num_bytes / 1e6:>9,.1f} MB"
            print(f"{model.name!s:<{width}}  {size}  {model.commit[:8]}  {model.folder}")
    if not listed:
        print("headway: no model of the Hub has been converted yet; use one by its name (hf:NAME)", file=sys.stderr)


def _update() -> None:
    """Update each model whose revision may change. Errors are printed, except the last one, which ends the command."""
    from headway.interop.hub.conversion import update_converted
    from headway.interop.hub.converted import converted_models

    prepare_client()
    failed: HeadwayError | None = None
    for model in converted_models():
        if model.name.is_commit:
            continue
        try:
            newest = update_converted(model.name)
        except HeadwayError as error:
            if failed is not None:
                print(f"headway: {failed}", file=sys.stderr)
            failed = error
            continue
        changed = newest.folder != model.folder
        print(f"{model.name}: {'updated to' if changed else 'has the newest content,'} commit {newest.commit[:8]}")
    if failed is not None:
        raise failed
