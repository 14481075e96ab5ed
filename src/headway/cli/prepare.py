"""``headway prepare``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.train import RecipeFile, RecipeOverrides, RunFolder

__all__ = ["prepare"]


def prepare(
    recipe: RecipeFile,
    assignments: RecipeOverrides = None,
    run: RunFolder = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do part I of N; run all parts on one file system, in any order.")
    ] = "1/1",
) -> None:
    """Train the tokenizer and tokenise the corpora ahead of training, on all cores.

    Training finds what is done, and by a short rehearsal what it would compile at its first step on this machine.
    Running again after an interruption goes on with the rest. Of several parts, on as many machines that share the run
    folder, the one that finishes last joins them; so does training.
    """
    from headway.cli.progress import ProgressListener
    from headway.data.store_builder import Shard
    from headway.tasks import load_recipe, task_of
    from headway.train.fine_tuning import complete_recipe
    from headway.train.prepare import rehearse

    part = Shard.parse(shard)
    loaded = load_recipe(recipe, assignments or [])
    task, folder = task_of(loaded), run or Path("runs") / recipe.stem
    begin = time.perf_counter()
    with ProgressListener() as listener:
        loaded = complete_recipe(loaded, folder)
        prepared = task.prepare(loaded, folder, listener, part)
        seconds = time.perf_counter() - begin
        if prepared is not None:
            rehearse(task, loaded, prepared, listener)
    if prepared is None:
        print(f"part {part.number} of {part.total} is done, others are not yet ({seconds:.1f} s)", file=sys.stderr)
        return
    tokens = prepared.train.num_tokens("source") + prepared.train.num_tokens("target")
    print(
        f"{len(prepared.train):,} examples, {tokens:,} tokens are ready in {folder} ({seconds:.1f} s)", file=sys.stderr
    )
