"""Arguments and options that several commands share. Each is declared with its name, type and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.model_folders import MODEL

OutputFormat = Literal["text", "json"]
Precision = Literal["auto", "float32", "bfloat16", "int8"]
Device = Literal["auto", "cpu", "cuda"]

# Files and folders
ModelArgument = Annotated[
    Path, typer.Argument(help="A model folder, or the name of a model on the Hugging Face Hub (hf:NAME)."), MODEL
]
TextArgument = Annotated[str | None, typer.Argument(help="A text. Default: the lines of --input.")]
TextInputOption = Annotated[
    Path | None, typer.Option("-i", "--input", help="Input file, one text per line. Default: standard input.")
]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", help="Output file. Default: standard output.")]
ReferenceOption = Annotated[Path | None, typer.Option(help="For translation: reference file, one sentence per line.")]
LabeledDataOption = Annotated[
    Path | None,
    typer.Option(
        help="For classifiers: labeled texts, .tsv (label first), .csv or .jsonl. For language models: plain text or "
        ".jsonl, a folder, or a pattern such as 'books/*.txt'."
    ),
]
FieldsOption = Annotated[
    str | None,
    typer.Option(
        help="Numbers or names of columns. With --data: label and text (default: 1,2 in .tsv files, otherwise "
        "label,text). For language models: the text in .jsonl (default: text). With --pairs: good, bad and, "
        "optionally, group (default: 1,2 in .tsv files, otherwise good,bad). With --choices: question, choices and "
        "answer (default: these names)."
    ),
]
DocumentsOption = Annotated[
    Literal["file", "line", "blank_lines"] | None,
    typer.Option(
        help="With a language model and --data: how plain text is divided into documents: the whole file (default), "
        "each line, or the text between blank lines."
    ),
]
StrideOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With a language model: number of tokens between the starts of two windows, for texts longer than the "
        "context. Default: half the context.",
    ),
]
OnErrorOption = Annotated[
    Literal["stop", "mark"],
    typer.Option(
        help="If a line cannot be processed: stop ends the command; mark writes an empty line and reports the error."
    ),
]
DeviceOption = Annotated[
    Device,
    typer.Option(
        "--device",
        help="Device to compute on. auto: a GPU if there is one, but the CPU for --precision int8, for ONNX folders "
        "and for several --workers.",
    ),
]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="Format of the printed results.")]

# Translation
EnsembleOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        help="Another model with the same tokenizers, whose probabilities are averaged with MODEL's; may be repeated.",
    ),
    MODEL,
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help="Precision of matrix products. auto: the fastest that this machine supports. float32: the reference.",
    ),
]
MeasuredPrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help="Precision in which the model is evaluated. auto: the precision in which it generates. In precisions "
        "other than float32, the model processes one token at a time, as in generation.",
    ),
]
ShortlistOption = Annotated[
    bool,
    typer.Option(
        "--shortlist", help="Use only the target tokens that headway shortlist has learned for the sentence's tokens."
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        min=1,
        help="Number of processes that share the lines of a file; preferably one per core. Each uses one thread (or "
        "OMP_NUM_THREADS) and loads the whole model.",
    ),
]
TargetLanguageOption = Annotated[
    str | None, typer.Option("--to", help="Language to translate into, for a model with several target languages.")
]
SourceLanguageOption = Annotated[
    str | None,
    typer.Option("--from", help="Language of the source, for imported models with several source languages."),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(help="For translation: bleu, chrf, ter, exact_match or token_accuracy; may be repeated."),
]

# Training
RecipeArgument = Annotated[Path, typer.Argument(help="A recipe: a TOML file.")]
RecipeOverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the recipe; may be repeated."),
]
RunFolderOption = Annotated[Path | None, typer.Option(help="The run folder. Default: runs/RECIPE.")]
TrainingDeviceOption = Annotated[
    Device | None,
    typer.Option(
        "--device", help="Device to use, as with --set training.device. Default: auto, a GPU if there is one."
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start from scratch. An earlier run is moved aside, not deleted.")
]
