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
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of Hugging Face or CTranslate2, an .argosmodel file, or Marian's .npz file or its folder. "
            "To choose the format: huggingface:, ctranslate2:, argos: or marian: before the path."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The model folder to write. Default: SOURCE-headway.")
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Source language to assume if none is given. Default: the one set in SOURCE.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language to assume if none is given. Default: the one set in SOURCE.")
    ] = None,
) -> None:
    """Convert a pretrained model into a model folder.

    Hugging Face: OPUS-MT/Marian, M2M-100, NLLB, mBART, BART, FSMT, Pegasus for translation; GPT-2, GPT-NeoX/Pythia,
    Llama, Mistral, Qwen2, Qwen3 as language models; BERT, RoBERTa, DistilBERT, ModernBERT as masked language models and
    sequence classifiers. CTranslate2, packages of Argos Translate, and Marian: encoder-decoder Transformers.
    """
    from headway.diagrams.model_card import add_drawing
    from headway.interop.importing import ImportedBundle, import_from, located_source
    from headway.predict.translation.shortlisting import write_shortlist

    form, origin = located_source(source)
    default = sibling_folder(origin.with_suffix("") if origin.is_file() else origin, "headway")
    folder = checked_output_folder(output or default, origin)
    imported = import_from(f"{form}:{origin}", source_language=source_language, target_language=target_language)
    imported.bundle.save(folder, imported.card)
    add_drawing(folder, imported.bundle.model)
    print(f"{folder}: {imported.bundle.tokenizers['source'].vocab_size:,} tokens, from {source}")
    if isinstance(imported, ImportedBundle):
        if imported.description:
            print(f"found: {imported.description}")
        if imported.shortlist is not None:
            write_shortlist(imported.shortlist, folder)
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
