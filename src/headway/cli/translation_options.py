"""The translation options shared by ``headway translate`` and ``headway corpus translate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli import options
from headway.cli.model_folders import MODEL

PivotOption = Annotated[
    Path | None,
    typer.Option(
        "--pivot",
        metavar="<path>",
        help="A second model, which translates the output of the first model: DE-EN with --pivot EN-FR translates "
        "from German into French. --from applies to the first model, all other options to the second.",
    ),
    MODEL,
]
PivotCandidatesOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="With --pivot: number of translations of each text by the first model. They are ranked by the joint "
        "probability of both steps. At most the beam size. 1: only the best translation.",
    ),
]
PivotLanguageOption = Annotated[
    str | None,
    typer.Option(help="With --pivot: the intermediate language, if the models have several in common."),
]
PrefixOption = Annotated[str, typer.Option(help="Text that every translation begins with.")]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A phrase that every translation must contain as whole words. 'a|b' requires at least one of the two; "
        "'Haus*', '*haus' and '*Haus*' also match part of a longer word. May be repeated."
    ),
]
BanOption = Annotated[list[str] | None, typer.Option(help="A phrase that no translation may contain; may be repeated.")]
GlossaryOption = Annotated[
    Path | None,
    typer.Option(
        help="TSV or CSV file. Each line contains a source phrase, a target phrase ('a|b': one of the two) and "
        "optionally ignore or exact (case). If a sentence contains the source phrase, its translation must contain "
        "the target."
    ),
]
MarkupOption = Annotated[
    Literal["html", "xml"] | None,
    typer.Option(help="Each text is HTML or XML. Tags are kept, and inline tags enclose the translated words."),
]
ProtectOption = Annotated[
    bool,
    typer.Option(
        help="Keep placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks."
    ),
]
MbrOption = Annotated[
    bool,
    typer.Option(
        "--mbr",
        help="Choose the --n-best candidate that is most similar to the others by chrF (minimum Bayes risk).",
    ),
]
AlignmentOption = Annotated[
    bool, typer.Option("--alignment", help="Also write the word alignment, such as 0-0 1-2 (source word first).")
]
AlignmentLayerOption = Annotated[
    int | None,
    typer.Option(
        help="The decoder block whose attention gives the alignment. Default: the last block, or the "
        "second-to-last in decoders of four or more."
    ),
]
GuardOption = Annotated[
    bool,
    typer.Option(
        help="If the best hypothesis is repetitive, copied or truncated, use the next hypothesis that is not."
    ),
]
MaxSourceTokensOption = Annotated[
    int | None,
    typer.Option(
        min=2, help="Longer texts are split. Default: the number of learned positions, or 256 if there are none."
    ),
]
TranslationFormatOption = Annotated[
    options.OutputFormat,
    typer.Option(
        "--format",
        help="text: one line per input line (with --n-best: line number, score, text); json: one object per line.",
    ),
]
InputFormatOption = Annotated[
    Literal["text", "jsonl"],
    typer.Option(help="jsonl: one JSON object per line, with text and optionally prefix, include, banned."),
]
