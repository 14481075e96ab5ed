"""``headway learn-bpe``: show how byte-pair encoding is learned, merge by merge."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import input_name, output_file, read_input_lines
from headway.errors import DataError
from headway.text.visible_tokens import make_visible

if TYPE_CHECKING:
    from headway.text.bpe_learning import LearnedMerge

GROUP = CommandGroup.UNDERSTAND


def learn_bpe(
    corpus: Annotated[Path, typer.Argument(metavar="FILE", help="Text, one example per line. - is standard input.")],
    merges: Annotated[int, typer.Option(min=1, help="Number of merges to learn.")] = 20,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--word",
            help="A word whose symbols are shown after each merge; may be repeated. For a word inside a sentence, "
            "include the space before it: ' low'.",
        ),
    ] = None,
    min_frequency: Annotated[int, typer.Option(min=1, help="Stop when no pair occurs at least this many times.")] = 2,
    split_digits: Annotated[bool, typer.Option("--split-digits", help="Make each digit a separate word.")] = False,
    output: options.OutputOption = None,
    format_: Annotated[
        options.OutputFormat, typer.Option("--format", help="text: a table; json: one object per merge.")
    ] = "text",
) -> None:
    """Show how byte-pair encoding learns from a text: print each merge, and how often its pair occurs.

    The first symbols are the bytes of the words. In each step, the most frequent pair of neighboring symbols is merged
    into a new symbol everywhere in the text. Training learns the same merges.
    """
    from headway.text.bpe_learning import count_words, initial_symbols, learn_merges
    from headway.text.tokenizer import readable_piece

    counts = count_words(read_input_lines(corpus), split_digits=split_digits)
    if not any(readable_piece(word).strip() for word in counts):
        raise DataError(f"{input_name(corpus)}: no text to learn from; expected at least one line that is not blank")
    learned = learn_merges(counts, min_frequency=min_frequency, examples=words or (), split_digits=split_digits)
    num_learned = 0
    with output_file(output) as file:
        if format_ == "text":
            file.write(f"{counts.total():,} words, {len(counts):,} different ones\n")
            if words:
                file.write(
                    _line("0", "bytes", "", (initial_symbols(word, split_digits=split_digits) for word in words))
                )
        for merge in islice(learned, merges):
            line = _merge_line(merge) if format_ == "text" else json.dumps(asdict(merge), ensure_ascii=False) + "\n"
            file.write(line)
            file.flush()
            num_learned += 1
    if num_learned < merges:
        typer.echo(f"{num_learned:,} merges: no other pair occurs {min_frequency:,} times", err=True)


def _merge_line(merge: LearnedMerge) -> str:
    pair = f"{make_visible(merge.left)} + {make_visible(merge.right)} → {make_visible(merge.merged)}"
    return _line(f"{merge.rank + 1:,}", pair, f"{merge.count:,}", merge.segmentations)


def _line(number: str, pair: str, count: str, examples: Iterable[Iterable[str]]) -> str:
    """Return a line of the table: a merge, its count, and each example, separated by tabs."""
    return "\t".join([number, pair, count, *("|".join(map(make_visible, symbols)) for symbols in examples)]) + "\n"
