"""Start over: move the folder of a previous run aside."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.errors import HeadwayError
from headway.storage import lock_run_folder
from headway.torchrun import is_first_start, is_main_process, may_be_restarted


@contextmanager
def move_previous_run_aside(folder: Path, fresh: bool, say: Callable[[str], None]) -> Iterator[Path | None]:
    """If ``fresh`` is True, rename the folder of a previous run. Undo this if the new run cannot start.

    The new name is the first unused name among NAME.1, NAME.2, and so on. In a distributed job, only process 0 renames
    the folder, and only when the job first starts. The previous run is not renamed back if torchrun may restart the
    job, because the restarted job would resume the previous run. Yields the new path of the previous run, or None if
    nothing was renamed.
    """
    if not (fresh and is_main_process() and is_first_start() and folder.exists()):
        yield None
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    with lock_run_folder(folder):  # raises an error if the run is still training
        folder.rename(aside)
    say(f"the earlier run is now {aside}")
    try:
        yield aside
    except HeadwayError:
        if not may_be_restarted() and not any(folder.glob("checkpoints/step-*")):
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
            say(f"the earlier run is {folder} again")
        raise
