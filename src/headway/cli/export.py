"""``headway export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.folders import beside, folder_to_write

__all__ = ["export"]


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[str, typer.Option("--to", help="huggingface, ctranslate2 or onnx.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write; default: MODEL-FORMAT.")
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(help="Type of a CTranslate2 folder's weights, such as int8; default: float32.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="What the exported tokenizer tells a model of several source languages.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="What the exported tokenizer tells a model of several target languages.")
    ] = None,
) -> None:
    """Write a model for another toolkit."""
    from headway.bundle import load_bundle
    from headway.interop.exporting import export_to
    from headway.predict.shortlisting import read_shortlist

    folder = folder_to_write(output or beside(model, to), model)
    languages = {"source_language": source_language, "target_language": target_language}
    bundle = load_bundle(model)
    shortlist = read_shortlist(bundle, model)
    export_to(to, bundle, folder, quantization=quantization, shortlist=shortlist, **languages)
    print(f"{folder}: {model} for {to}")
