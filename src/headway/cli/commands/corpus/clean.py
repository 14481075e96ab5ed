"""``headway corpus clean``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import corpus_jobs as jobs

if TYPE_CHECKING:
    from headway.jobs.plan import Plan

_IN_PROCESS_LINES = 20_000  # one process measures this many lines in the time that it takes to start worker processes


@jobs.with_job_options
def clean(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Pairs: SOURCE TARGET, two files with a text per line (or several such pairs of files), or .tsv, "
            ".jsonl or .tmx files with both. Single texts: files with a text per line. Files may be compressed "
            "(.gz, .zst)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The folder for the results. If it contains an interrupted run, that run is resumed."
        ),
    ],
    from_: Annotated[
        str | None,
        typer.Option("--from", help="Language of the sources, or of single texts: any common code, such as de or deu."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Language of the targets, for a corpus of pairs.")] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Clean labeled texts: .tsv (label first) or .jsonl.")
    ] = False,
    fields: Annotated[
        str | None,
        typer.Option(
            help="Column numbers in .tsv, or field names in .jsonl: source and target (default 1,2 or source,target), "
            "label and text with --labels (default 1,2 or label,text), or text (default 1 or text)."
        ),
    ] = None,
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            "--held-out",
            help="File with texts for development or testing. Lines that contain one of these texts, ignoring case and "
            "punctuation, are always removed; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A translation model from source to target. With --reverse, the rule cross_entropy drops pairs on "
            "which the two models do not agree. Both models run in int8 on the CPU."
        ),
    ] = None,
    reverse: Annotated[Path | None, typer.Option(help="A translation model from target to source.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Repairs, rules and thresholds: a TOML file, as headway schema clean describes it."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the configuration, such as thresholds.max_characters=500; may be repeated.",
        ),
    ] = None,
    *,
    job: jobs.JobOptions,
) -> None:
    """Clean a corpus: repair texts, drop lines that a model should not learn from, and report the reasons.

    The output folder then contains the kept lines in the format of the input, dropped.jsonl.zst with each dropped line
    and the rule that dropped it, and report.html with counts, histograms and examples.
    """
    from headway.corpus.cleaning.config import load_cleaning_config
    from headway.corpus.cleaning.request import cleaning_request
    from headway.corpus.cleaning.run import HTML_REPORT_FILE
    from headway.corpus.cleaning.run import clean as clean_corpus

    inputs, settings = cleaning_request(
        files,
        source_language=from_,
        target_language=to,
        has_labels=labels,
        fields=fields.split(",") if fields else None,
        held_out=held_out or (),
        model=model,
        reverse_model=reverse,
        config=load_cleaning_config(config, assignments or ()),
    )
    bar = _ActivityBar()

    def measure(plan: Plan) -> None:
        with bar.hidden():
            _measure(plan, job)

    with bar.shown():
        result = clean_corpus(
            inputs,
            settings,
            output,
            measure,
            chunk_lines=job.chunk_lines,
            timing=job.timing(),
            on_progress=bar.update,
        )
    kept, *others = result.summary()
    for line in (f"{output}: {kept}", *others, f"what and why: {output / HTML_REPORT_FILE}"):
        print(f"headway: {line}", file=sys.stderr)


def _measure(plan: Plan, job: jobs.JobOptions) -> None:
    """Work on the first pass until it is complete, or submit workers to a cluster.

    Raises:
        Exit: Workers were submitted.
    """
    from headway.jobs.join import count_missing_chunks

    if not count_missing_chunks(plan):
        return
    if job.slurm is None and job.ray is None and plan.num_lines <= _IN_PROCESS_LINES:
        from headway.corpus.work import load_line_map
        from headway.jobs.worker import Worker

        Worker(plan, load_line_map(plan), in_order=True).run()
        return
    jobs.start_workers(plan, job, "measuring")
    if count_missing_chunks(plan):
        print("headway: when the workers are done, the same command writes the results", file=sys.stderr)
        raise typer.Exit


class _ActivityBar:
    """Shows on a terminal (standard error) what the command is doing, except while workers show their progress."""

    def __init__(self) -> None:
        self._bar: Any = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar until the end of the block."""
        if sys.stderr.isatty():
            from headway.calls.progress import progress_bar

            self._bar = progress_bar(redirect_stdout=False, transient=True)
            self._task = self._bar.add_task("reading", total=None, numbers="")
            self._bar.start()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar until the end of the block."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    def update(self, activity: str, done: int, total: int) -> None:
        """Show an activity, the number of finished lines and the number of all lines."""
        if self._bar is not None:
            self._bar.update(
                self._task, description=activity, completed=done, total=total or None, numbers=f"{done:,} lines"
            )
