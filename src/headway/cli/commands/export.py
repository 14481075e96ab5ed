"""``headway export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.folders import checked_output_folder, sibling_folder
from headway.cli.smaller_folders import SmallerFolderSpec, write_smaller_folder
from headway.errors import ConfigError

GROUP = CommandGroup.DEPLOY
_OWN_FORMAT = "headway"


def export(
    model: options.ModelArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Format to convert to: huggingface, ctranslate2 or onnx; or headway, for a smaller model folder.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The folder to write. Default: MODEL-FORMAT.")
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(help="Data type of the weights, such as int8: for headway and CTranslate2. Default: float32."),
    ] = None,
    quantize_embeddings: Annotated[
        bool, typer.Option("--quantize-embeddings", help="For headway: also store embeddings in int8.")
    ] = False,
    keep_text: Annotated[
        list[Path] | None,
        typer.Option(help="For headway: reduce the vocabulary to the tokens of this file's lines; may be repeated."),
    ] = None,
    keep_languages: Annotated[
        str | None,
        typer.Option(
            help="For headway: reduce the vocabulary to tokens spelled with the letters of these languages, such as "
            "de,en."
        ),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Source language that the exported tokenizer selects, if the model has several.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language that the exported tokenizer selects, if the model has several.")
    ] = None,
) -> None:
    """Convert a model to the format of another toolkit, or to a smaller model folder."""
    from headway.bundle import load_bundle
    from headway.interop.exporting import export_to
    from headway.predict.translation.shortlisting import read_shortlist

    folder = checked_output_folder(output or sibling_folder(model, to), model)
    smaller = {
        "--quantize-embeddings": quantize_embeddings,
        "--keep-text": keep_text,
        "--keep-languages": keep_languages,
    }
    if to == _OWN_FORMAT:
        if source_language or target_language:
            raise ConfigError("--to headway keeps all languages; leave out --source-language and --target-language")
        request = SmallerFolderSpec(
            quantization,
            quantize_embeddings,
            tuple(keep_text or ()),
            tuple(code.strip() for code in (keep_languages or "").split(",") if code.strip()),
        )
        for line in write_smaller_folder(model, folder, request):
            print(line)
        print(f"{folder}: {model}, smaller")
        return
    if given := [name for name, value in smaller.items() if value]:
        raise ConfigError(f"{given[0]}: only for --to headway, but the format is {to}")
    languages = {"source_language": source_language, "target_language": target_language}
    bundle = load_bundle(model)
    shortlist = read_shortlist(bundle, model)
    export_to(to, bundle, folder, quantization=quantization, shortlist=shortlist, **languages)
    print(f"{folder}: {model} in the format of {to}")
