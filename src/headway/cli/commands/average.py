"""``headway average``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.TRAIN


def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(help="Number of newest checkpoints to average.", min=1)] = 5,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The model folder to write. Default: RUN/average.")
    ] = None,
) -> None:
    """Average a run's newest checkpoints into a model folder."""
    from headway.training.averaging import average_checkpoints

    folder = output or run / "average"
    count = average_checkpoints(run, last, folder)
    print(f"{folder}: average of {count} checkpoints")
