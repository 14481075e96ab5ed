"""Check that several threads that share one Translator get the same results as one thread.

The script translates the lines of a file with alignments, in calls of a few lines each: first one call after another,
then the same calls in several threads at once. The batches are the same, so all results should be equal. In int8, the
script also compares them with a single call for all lines, because a result must not depend on its batch.

    python benchmarks/threads.py MODEL FILE                            # 2,000 lines, 8 threads, int8 and float32
    python benchmarks/threads.py MODEL FILE --lines 200 --threads 4
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer

from headway import kernels
from headway.engine import Precision
from headway.errors import HeadwayError
from headway.hardware import processor_name
from headway.predict import TranslateOptions, Translation, load_translator

_LINES_PER_CALL = 25

Results = Sequence[Translation | HeadwayError]


def main(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path, typer.Argument(help="A text file in the source language, one sentence per line.")],
    lines: Annotated[int, typer.Option(min=1, help="Number of lines to translate.")] = 2000,
    threads: Annotated[int, typer.Option(min=2, help="Number of threads that translate at once.")] = 8,
) -> None:
    """Compare the results of several threads with the results of one thread; exit with 1 if any result differs."""
    with source.open(encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in islice(file, lines)]
    print(f"{len(texts):,} lines, {threads} threads, torch {torch.__version__} with {torch.get_num_threads()} threads,")
    print(f"{processor_name()}")
    precisions: tuple[Precision, ...] = ("int8", "float32") if kernels.is_available() else ("float32",)
    failed = [precision for precision in precisions if not _compare(model, texts, threads, precision)]
    raise typer.Exit(bool(failed))


def _compare(model: Path, texts: list[str], threads: int, precision: Precision) -> bool:
    """Print the number of results that differ with several threads, and return whether all are equal."""
    calls = [texts[start : start + _LINES_PER_CALL] for start in range(0, len(texts), _LINES_PER_CALL)]
    one, many = (load_translator(model, precision=precision) for _ in range(2))
    aligned = TranslateOptions(alignment=True)

    started = time.perf_counter()
    expected = [each for call in calls for each in one.translate_each(call, aligned)]
    seconds = [time.perf_counter() - started]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda call: many.translate_each(call, aligned), calls)
        found = [each for result in results for each in result]
    seconds.append(time.perf_counter() - started)

    different = _count_different(expected, found)
    alignments = sum(_pairs(a) != _pairs(b) for a, b in zip(expected, found, strict=True))
    print(f"{precision}: {different} results differ, {alignments} of them in the alignment", end="")
    print(f" ({seconds[0]:.1f} s with one thread, {seconds[1]:.1f} s with {threads})")
    if precision != "int8":
        return different == 0
    # Alignments are computed in float32, so their rounding depends on the batch. All other results must be equal.
    together = [_without_alignment(each) for each in one.translate_each(texts)]
    in_calls = [_without_alignment(each) for each in expected]
    batched = _count_different(together, in_calls)
    print(f"{precision}: {batched} results depend on the other sentences of their batch")
    return different == batched == 0


def _count_different(results: Results, others: Results) -> int:
    return sum(str(a) != str(b) for a, b in zip(results, others, strict=True))


def _pairs(result: Translation | HeadwayError) -> object:
    alignment = result.alignment if isinstance(result, Translation) else None
    return alignment and alignment.pairs


def _without_alignment(result: Translation | HeadwayError) -> Translation | HeadwayError:
    if isinstance(result, HeadwayError):
        return result
    return replace(result, candidates=tuple(replace(each, alignment=None) for each in result.candidates))


if __name__ == "__main__":
    typer.run(main)
