"""Line-by-line input and output of the commands: read texts, write results, report bad lines and show the progress."""

from __future__ import annotations

import codecs
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

from headway.errors import ConfigError, DataError, HeadwayError

_STANDARD = Path("-")
_BATCH_LINES = 2048  # number of lines read at a time, so that sentences of similar length are translated together
_BATCH_BYTES = 1 << 20
_READ_BYTES = 1 << 18


def input_name(path: Path | None) -> str:
    """Return the name of an input for messages."""
    return "standard input" if path is None or path == _STANDARD else str(path)


def read_text_batches(
    text: str | None, path: Path | None, *, argument: str = "TEXT", batch_lines: int = _BATCH_LINES, workers: int = 1
) -> tuple[str, Iterable[Sequence[bytes | str]]]:
    """Return the name of a command's input, and the input's lines in batches of up to ``batch_lines`` per worker.

    The input is the ``argument`` if it is given, otherwise a file or standard input.
    """
    if text is None:
        return input_name(path), read_line_batches(path, batch_lines, workers)
    if path is not None:
        raise ConfigError(f"{argument} and --input cannot be combined; use one of them")
    return argument, [[text]]


def is_terminal_input(path: Path | None) -> bool:
    """Return whether an input is standard input (None or "-") and a terminal."""
    return (path is None or path == _STANDARD) and sys.stdin.isatty()


def read_text_or_stdin(text: str | None) -> str:
    """Return a command's TEXT argument, or all of standard input if the argument is missing.

    Raises:
        DataError: Standard input is not UTF-8, or is empty.
    """
    if text is None:
        text = "\n".join(read_input_lines(None))
        if not text:
            raise DataError("standard input is empty; expected a text on standard input or as an argument")
    return text


def read_input_lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file, perhaps compressed, or of standard input (None or "-"). Lines end in LF or CR LF."""
    from headway.data.readers import decode_lines

    for number, line in enumerate(chain.from_iterable(read_line_batches(path))):
        yield decode_lines(line, input_name(path), number)


def read_line_batches(path: Path | None, batch_lines: int = _BATCH_LINES, workers: int = 1) -> Iterator[list[bytes]]:
    """Yield the undecoded lines of a file or of standard input, in batches of up to ``batch_lines`` per worker.

    On standard input, a batch contains the lines that have arrived so far. A program that writes one line and waits
    therefore gets its answer at once. (A pipe buffers about 64 KiB.)
    """
    from headway.data.readers import read_byte_lines

    if path is not None and path != _STANDARD:
        yield from _batches(read_byte_lines(path), workers, batch_lines)
        return
    for number, block in enumerate(_arriving(cast("BufferedIOBase", sys.stdin.buffer), workers)):
        lines = (block if number else block.removeprefix(codecs.BOM_UTF8)).split(b"\n")
        yield from _batches((line.removesuffix(b"\r") for line in lines), workers, batch_lines)


def _batches(lines: Iterable[bytes], workers: int, batch_lines: int = _BATCH_LINES) -> Iterator[list[bytes]]:
    """Yield batches of at most ``batch_lines`` lines and about one mebibyte per worker."""
    lines, most_lines, most_bytes = iter(lines), workers * batch_lines, workers * _BATCH_BYTES
    while batch := list(islice(lines, 1)):
        size = len(batch[0])
        while len(batch) < most_lines and size < most_bytes and (more := next(lines, None)) is not None:
            batch.append(more)
            size += len(more)
        yield batch


def _arriving(stream: BufferedIOBase, workers: int) -> Iterator[bytes]:
    """Yield blocks of complete lines as they arrive. Wait only while no complete line is available."""
    from headway.data.readers import line_blocks

    return line_blocks(iter(partial(stream.read1, workers * _READ_BYTES), b""))


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[str]]:
    """Open standard output (None or "-"), or a file that appears only after everything has been written."""
    from headway.storage import atomic_write

    if path is None or path == _STANDARD:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with atomic_write(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            yield file
    except OSError as error:
        error.filename = error.filename or str(path)  # Python sets no file name for a device such as /dev/full
        raise


@contextmanager
def show_progress(job: str, source: Path | None, *, to_stdout: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show finished lines, rate and time left of a job on standard error if it is a terminal.

    Args:
        job: Name of the job, shown beside the progress bar.
        source: The input file. None means standard input.
        to_stdout: Whether results go to standard output. If standard output is a terminal, no bar is shown, because the
            results themselves show the progress.

    Yields:
        A function to call with the number of newly finished lines and their size in the input in bytes.
    """
    if not sys.stderr.isatty() or is_terminal_input(source) or (to_stdout and sys.stdout.isatty()):
        yield lambda lines, size: None
        return
    from headway.calls.progress import progress_bar

    # The time left is estimated from bytes, because the number of lines is unknown until the end. The size of
    # compressed or piped input is also unknown, so no time is estimated.
    plain = source is not None and source.is_file() and source.suffix not in (".gz", ".zst", ".bz2", ".xz")
    size = source.stat().st_size if source is not None and plain else None
    done, begin = 0, time.monotonic()
    with progress_bar(redirect_stdout=False, transient=True) as bar:
        task = bar.add_task(job, total=size, numbers="")

        def count_lines(lines: int, read: int) -> None:
            nonlocal done
            done += lines
            rate = done / max(time.monotonic() - begin, 1e-3)
            bar.update(task, advance=read, numbers=f"{done:,} lines  {rate:,.0f} lines/s")

        yield count_lines


ResultT = TypeVar("ResultT")
LineT = TypeVar("LineT", bytes | str, tuple[bytes, bytes])
SourceT = TypeVar("SourceT")


def process_lines(
    batches: Iterable[Sequence[LineT]],
    parse: Callable[[Sequence[LineT], int], Sequence[SourceT | HeadwayError]],
    report: LineReport,
    format_line: Callable[[int, SourceT | HeadwayError, Any], str],
    *,
    job: str,
    source: Path | None,
    output: Path | None,
) -> Generator[tuple[list[SourceT], list[Any]], None, None]:
    """Yield, for each batch, the lines that could be parsed and an empty list, which the caller fills with their
    results.

    The caller must append one result or error for each line. Results are written, in the order of the lines, when the
    caller requests the next batch. If the caller fails, it must close the generator; the output file then remains
    unchanged.

    All commands that read lines use this loop, so that a program that writes a single line gets its answer at once.

    Args:
        batches: The lines of the input, or pairs of lines of two inputs.
        parse: Function that takes lines and the number of the first line, and returns the source or the error of each.
        report: Counts the results, and raises or reports the errors of lines.
        format_line: Function that formats the output for a line, given the line's number, source and result. If the
            line could not be parsed, both source and result are its error.
        job: Name of the job, shown beside the progress bar.
        source: The input file. None means standard input.
        output: The output file. None means standard output.
    """
    with show_progress(job, source, to_stdout=output is None) as count_lines, output_file(output) as file:
        for batch in batches:
            first, batch_results = report.num_lines + 1, list[Any]()
            lines = parse(batch, first)
            yield [line for line in lines if not isinstance(line, HeadwayError)], batch_results
            remaining = iter(batch_results)
            results = [line if isinstance(line, HeadwayError) else next(remaining) for line in lines]
            report.add_results(results)
            file.writelines(map(format_line, count(first), lines, results))
            file.flush()
            count_lines(len(results), sum(map(_num_bytes, batch)) + len(batch))
    report.finish()


def _num_bytes(line: bytes | str | tuple[bytes, bytes]) -> int:
    """Return the size of a line in the input file. For a pair of lines, return the size of the first."""
    return len(line[0]) if isinstance(line, tuple) else len(line)


def convert_all(
    texts: Sequence[str],
    convert: Callable[[Sequence[str]], Iterable[ResultT | HeadwayError]],
    *,
    job: str,
    source: Path,
    unit: str = "line",
    workers: int = 1,
) -> list[ResultT]:
    """Convert the texts of the file ``source`` in batches, and show the progress under the name ``job``.

    Raises:
        HeadwayError: A text cannot be converted. The message names the file and the text, such as "line 3" if ``unit``
            is "line".
    """
    results: list[ResultT] = []
    with show_progress(job, source) as count_lines:
        for start in range(0, len(texts), workers * _BATCH_LINES):
            batch = texts[start : start + workers * _BATCH_LINES]
            for number, result in enumerate(convert(batch), start=start + 1):
                if isinstance(result, HeadwayError):
                    raise result.with_location(f"{input_name(source)}, {unit} {number}")
                results.append(result)
            count_lines(len(batch), sum(len(text.encode()) + 1 for text in batch))
    return results


class LineReport:
    """Counts lines, and reports on standard error which lines have failed and how many look suspicious.

    Args:
        name: Name of the input.
        on_error: "stop" raises the error of the first line that fails; "mark" reports and counts failed lines.
        get_flags: Function that returns the names of a result's flags, which are signs that it may be wrong.
        details: The option or command that shows which lines are suspicious.
        first_line: Number of the first line.
    """

    def __init__(
        self,
        name: str,
        on_error: Literal["stop", "mark"],
        get_flags: Callable[[Any], Iterable[str]],
        details: str = "--format json",
        *,
        first_line: int = 1,
    ) -> None:
        self.num_lines = first_line - 1
        self._name, self._on_error, self._get_flags, self._details = name, on_error, get_flags, details
        self._failed = 0
        self._lines_before = first_line - 1
        self._flags: Counter[str] = Counter()

    def add_results(self, results: Sequence[object]) -> None:
        """Count the results of the next lines, and raise or report their errors."""
        for number, result in enumerate(results, start=self.num_lines + 1):
            if isinstance(result, HeadwayError):
                error = result.with_location(f"{self._name}, line {number}")
                if self._on_error == "stop":
                    raise error
                self._say(str(error))
                self._failed += 1
            else:
                self._flags.update(self._get_flags(result))
        self.num_lines += len(results)

    def finish(self) -> None:
        """Report the totals if any line has failed or looks suspicious."""
        if self._failed:
            self._say(
                f"{self._failed:,} of {self.num_lines - self._lines_before:,} lines failed and are empty in the output"
            )
        report_flagged_lines(self._flags, self._details)

    def _say(self, message: str) -> None:
        print(f"headway: {message}", file=sys.stderr)


def report_flagged_lines(flags: Counter[str], details: str = "--format json") -> None:
    """Report on standard error how many lines are flagged, if any, and the option that shows which."""
    if flags:
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in flags.most_common())
        print(f"headway: suspicious lines ({details} shows which): {counts}", file=sys.stderr)
