"""``headway import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.folders import checked_output_folder, sibling_folder


def import_(
    source: Annotated[str, typer.Argument(help="huggingface:FOLDER; it contains config.json, weights and tokenizer.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The model folder to write. Default: FOLDER-headway.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Source language to assume if none is given. Default: the one set in FOLDER.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language to assume if none is given. Default: the one set in FOLDER.")
    ] = None,
) -> None:
    """Convert a pretrained model into a model folder.

    Translation: OPUS-MT/Marian, M2M-100, NLLB, mBART, BART, FSMT, Pegasus. Language models: GPT-2, GPT-NeoX/Pythia,
    Llama, Mistral, Qwen2, Qwen3. Masked language models, and sequence classifiers: BERT, RoBERTa, DistilBERT,
    ModernBERT.
    """
    from headway.interop.importing import import_from

    origin = Path(source.partition(":")[2])
    folder = checked_output_folder(output or sibling_folder(origin, "headway"), origin)
    found = import_from(source, source_language=source_language, target_language=target_language)
    found.bundle.save(folder, found.card)
    print(f"{folder}: {found.bundle.tokenizers['source'].vocab_size:,} tokens, from {source}")
