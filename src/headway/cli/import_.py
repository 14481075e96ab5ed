"""``headway import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.folders import beside, folder_to_write

__all__ = ["import_"]


def import_(
    source: Annotated[str, typer.Argument(help="huggingface:FOLDER, a folder with config.json, weights, tokenizer.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The model folder to write; default: FOLDER-headway.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="The source's language where translation is told none; default: FOLDER's own.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="The target's language where translation is told none; default: FOLDER's own.")
    ] = None,
) -> None:
    """Turn a pretrained model (OPUS-MT/Marian, M2M-100, NLLB, mBART, BART, FSMT, Pegasus) into a model folder."""
    from headway.interop.importing import import_from

    origin = Path(source.partition(":")[2])
    folder = folder_to_write(output or beside(origin, "headway"), origin)
    found = import_from(source, source_language=source_language, target_language=target_language)
    found.bundle.save(folder, found.card)
    print(f"{folder}: {found.bundle.source_tokenizer.vocab_size:,} tokens, from {source}")
