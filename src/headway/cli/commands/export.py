"""``headway export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.folders import checked_output_folder, sibling_folder

GROUP = CommandGroup.DEPLOY


def export(
    model: options.ModelFolder,
    to: Annotated[str, typer.Option("--to", help="Format to convert to: huggingface, ctranslate2 or onnx.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write. Default: MODEL-FORMAT.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Data type of CTranslate2 weights, such as int8. Default: float32.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Source language that the exported tokenizer selects, if the model has several.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language that the exported tokenizer selects, if the model has several.")
    ] = None,
) -> None:
    """Convert a model to the format of another toolkit."""
    from headway.bundle import load_bundle
    from headway.interop.exporting import export_to
    from headway.predict.translation.shortlisting import read_shortlist

    folder = checked_output_folder(output or sibling_folder(model, to), model)
    languages = {"source_language": source_language, "target_language": target_language}
    bundle = load_bundle(model)
    shortlist = read_shortlist(bundle, model)
    export_to(to, bundle, folder, quantization=quantization, shortlist=shortlist, **languages)
    print(f"{folder}: {model} in the format of {to}")
