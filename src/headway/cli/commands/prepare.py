"""``headway prepare``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.TRAIN


def prepare(
    recipe: options.RecipeArgument,
    assignments: options.RecipeOverridesOption = None,
    run: options.RunFolderOption = None,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Prepare part I of N. All parts share the run folder. They may be prepared in any order, or at the "
            "same time.",
        ),
    ] = "1/1",
) -> None:
    """Train the tokenizer and tokenize the corpora before training, on all cores.

    Training then starts without delay, because a trial training step also compiles the kernels that this machine needs.
    After an interruption, run the same command again to resume. With --shard, several machines that share the run
    folder prepare one part each. The machine that finishes last joins the parts; otherwise training joins them.
    """
    from headway.calls.progress import ProgressListener
    from headway.calls.recipes import prepare_recipe
    from headway.data.store_builder import Shard
    from headway.tasks import load_recipe

    part, folder = Shard.parse(shard), run or Path("runs") / recipe.stem
    loaded, begin = load_recipe(recipe, assignments or []), time.perf_counter()
    with ProgressListener() as listener:
        prepared = prepare_recipe(loaded, folder, shard=part, listener=listener)
    seconds = time.perf_counter() - begin
    if prepared is None:
        print(f"part {part.number} of {part.total} is done; other parts are missing ({seconds:.1f} s)", file=sys.stderr)
        return
    tokens = prepared.train.num_tokens("source") + prepared.train.num_tokens("target")
    print(
        f"{len(prepared.train):,} examples, {tokens:,} tokens are ready in {folder} ({seconds:.1f} s)", file=sys.stderr
    )
