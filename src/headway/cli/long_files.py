"""Translate long files in ``headway translate``, as a job that can be resumed or in parts on several machines."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from headway.cli.line_io import read_line_batches, report_flagged_lines
from headway.cli.translations import report_terms
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.corpus.translation import TranslationSettings
    from headway.jobs.plan import Plan

LONG_FILE_LINES = 50_000  # a small model translates this many lines in about a minute on one core
_STANDARD = Path("-")


def is_long_translation(source: Path | None, output: Path | None) -> bool:
    """Return whether the input is a file of more than 50,000 lines, and the output a file."""
    from headway.data.readers import text_size

    if source in (None, _STANDARD) or output in (None, _STANDARD):
        return False
    assert source is not None
    assert output is not None
    is_file = source.is_file() and (output.is_file() or not output.exists())
    return is_file and text_size(source).lines > LONG_FILE_LINES


def translate_in_job(
    settings: TranslationSettings,
    source: Path,
    output: Path,
    workers: int,
    on_error: Literal["stop", "mark"],
    *,
    fresh: bool,
) -> None:
    """Translate a file as a job in a hidden folder beside the output. If the job is interrupted, the next call resumes
    it.

    When the job is complete, the output file is written and the folder is deleted.
    """
    from headway.corpus.text_map import counts_with_prefix
    from headway.corpus.translation import FLAG_PREFIX, TERM_MET_PREFIX, TERM_NOT_MET_PREFIX
    from headway.corpus.work import make_job_request
    from headway.jobs.join import join_results
    from headway.jobs.plan import make_plan

    folder = output.parent / f".{output.name}.job"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    request = make_job_request("translate", with_absolute_paths(settings), [[source]], on_error=on_error)
    advice = "repeat that command to resume it, or start over with --fresh"
    plan = make_plan(folder, request, advice=advice)
    run_with_progress(plan, workers, "translating", one_thread=workers > 1)
    joined = join_results(plan, output)
    for failure in joined.failures:
        print(f"headway: {failure.file}, line {failure.line}: {failure.reason}", file=sys.stderr)
    if joined.num_failed:
        print(
            f"headway: {joined.num_failed:,} of {joined.num_lines:,} lines failed and are empty in the output",
            file=sys.stderr,
        )
    report_flagged_lines(counts_with_prefix(joined.counts, FLAG_PREFIX))
    met, not_met = (
        counts_with_prefix(joined.counts, TERM_MET_PREFIX),
        counts_with_prefix(joined.counts, TERM_NOT_MET_PREFIX),
    )
    report_terms(
        Counter({(term, is_met): n for is_met, terms in ((True, met), (False, not_met)) for term, n in terms.items()})
    )
    shutil.rmtree(folder, ignore_errors=True)


def with_absolute_paths(settings: TranslationSettings) -> TranslationSettings:
    """Return the settings with absolute paths of models and files, for processes with another working directory."""

    def whole(path: str | None) -> str | None:
        return None if path is None else str(Path(path).resolve())

    return settings.model_copy(
        update={
            "model": whole(settings.model),
            "other_models": tuple(map(whole, settings.other_models)),
            "pivot": whole(settings.pivot),
            "glossary": whole(settings.glossary),
        }
    )


def run_with_progress(plan: Plan, workers: int, activity: str, *, one_thread: bool) -> None:
    """Work on a job, and show its progress on standard error if it is a terminal.

    Raises:
        Exit: The command was interrupted or terminated.
    """
    from headway.corpus.work import work
    from headway.jobs.processes import WorkersStopped

    with _job_progress(plan, activity) as on_chunk:
        try:
            work(plan, workers, one_thread=one_thread, on_chunk=on_chunk)
        except (KeyboardInterrupt, WorkersStopped) as stop:
            print("headway: stopped; finished lines are kept, and the same command resumes", file=sys.stderr)
            raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None


@contextmanager
def _job_progress(plan: Plan, activity: str) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of lines in each finished chunk."""
    if not sys.stderr.isatty():
        yield lambda lines: None
        return
    import time

    from headway.calls.progress import progress_bar
    from headway.jobs.join import count_missing_chunks

    done = plan.num_lines * (plan.num_chunks - count_missing_chunks(plan)) // max(plan.num_chunks, 1)
    with progress_bar(redirect_stdout=False, transient=True) as bar:
        task = bar.add_task(activity, total=plan.num_lines, completed=done, numbers="")
        begin, new = time.monotonic(), 0

        def on_chunk(lines: int) -> None:
            nonlocal new
            new += lines
            rate = new / max(time.monotonic() - begin, 1e-3)
            bar.update(task, advance=lines, numbers=f"{done + new:,} lines  {rate:,.0f} lines/s")

        yield on_chunk


def batches_of_shard(source: Path | None, shard: str, workers: int) -> tuple[Iterable[Sequence[bytes | str]], int]:
    """Return one part of a file's lines in batches, and the number of its first line.

    Args:
        source: The file with all lines.
        shard: The number of the part and the number of parts, such as 3/10. The sizes of parts differ by at most one
            line.
        workers: Number of workers, which determines the size of batches.

    Raises:
        ConfigError: ``shard`` is not a valid part, or the input is not a file.
    """
    from headway.data.readers import text_size

    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(f"--shard {shard}: expected the number of a part and the number of parts, such as 3/10")
    if source is None or not source.is_file():
        raise ConfigError("--shard needs a file as --input, because its lines must be counted")
    total = text_size(source).lines
    first, end = (total * part // count for part in (number - 1, number))
    return _between(read_line_batches(source, workers=workers), first, end), first + 1


def _between(batches: Iterable[Sequence[bytes]], first: int, end: int) -> Iterator[Sequence[bytes]]:
    """Yield the lines from ``first`` up to but excluding ``end``, counted from 0."""
    done = 0
    for batch in batches:
        if part := batch[max(first - done, 0) : max(end - done, 0)]:
            yield part
        done += len(batch)
        if done >= end:
            return
