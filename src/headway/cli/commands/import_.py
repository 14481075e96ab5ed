"""``headway import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from headway.cli.command_groups import CommandGroup
from headway.cli.folders import checked_output_folder, sibling_folder

if TYPE_CHECKING:
    from headway.bundle import LanguageModelBundle

GROUP = CommandGroup.DEPLOY


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
    from headway.diagrams.model_card import add_drawing
    from headway.interop.importing import import_from

    origin = Path(source.partition(":")[2])
    folder = checked_output_folder(output or sibling_folder(origin, "headway"), origin)
    imported = import_from(source, source_language=source_language, target_language=target_language)
    imported.bundle.save(folder, imported.card)
    add_drawing(folder, imported.bundle.model)
    print(f"{folder}: {imported.bundle.tokenizers['source'].vocab_size:,} tokens, from {source}")
    if imported.bundle.capability == "continues":
        _check_int8(cast("LanguageModelBundle", imported.bundle), folder)


def _check_int8(bundle: LanguageModelBundle, folder: Path) -> None:
    """Compare the int8 form of a language model with float32, say the result, and store it."""
    from headway.predict import LanguageModel
    from headway.predict.language_modeling.int8_check import write_int8_check

    model = LanguageModel(bundle, device="cpu", precision="auto")
    if (check := model.int8_check) is not None:
        write_int8_check(check, folder)
        print(f"on a CPU it generates in {model.precision} by default: {check.describe()}")
