"""Starting over: the folder of an earlier run is moved aside."""

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
    """If ``fresh`` is True, rename the folder of an earlier run; rename it back if the new run cannot begin.

    The new name is the first free one of NAME.1, NAME.2, and so on. In a distributed job only process 0 does this, and
    only when the job first starts. The earlier run is not renamed back if torchrun may restart the job: the restarted
    job would otherwise resume the earlier run. Yields the new path of the earlier run, or None if nothing was renamed.
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
