"""``headway import``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from headway.cli.command_groups import CommandGroup
from headway.cli.folders import checked_output_folder, sibling_folder
from headway.cli.model_folders import folder_of_model, prepare_client
from headway.errors import ConfigError
from headway.interop.hub.names import SCHEMES, HubName, parse_model_source

if TYPE_CHECKING:
    from headway.bundle import LanguageModelBundle

GROUP = CommandGroup.DEPLOY


def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="hf:NAME, a model on the Hugging Face Hub; a Hugging Face or CTranslate2 folder, an .argosmodel "
            "file, or Marian's .npz file or its folder. A prefix of the path selects the format: huggingface: (or "
            "hf:), ctranslate2:, argos: or marian:."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The model folder to write. Default: SOURCE-headway or, for a name, a folder beside the Hub client's "
            "cache, in which all commands find the model by its name.",
        ),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Source language to assume if none is given. Default: the one set in SOURCE.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language to assume if none is given. Default: the one set in SOURCE.")
    ] = None,
) -> None:
    """Convert a pretrained model into a model folder.

    Hugging Face: OPUS-MT/Marian, M2M-100, NLLB, mBART, BART, FSMT, Pegasus, T5, mT5, MADLAD-400, ByT5 for translation;
    GPT-2, GPT-NeoX/Pythia, Llama, Mistral, Qwen2, Qwen3 as language models; BERT, RoBERTa, DistilBERT, ModernBERT as
    masked language models and sequence classifiers. CTranslate2, Argos Translate packages, and Marian: encoder-decoder
    Transformers.
    """
    from headway.diagrams.model_card import add_drawing
    from headway.engine.shortlist_file import write_shortlist
    from headway.interop.importing import ImportedBundle, import_from, locate_source

    opened: AbstractContextManager[str]
    form: str = SCHEMES[1]
    origin: Path | HubName
    if source.partition(":")[0] in SCHEMES:
        origin = parse_model_source(source)
    else:
        form, origin = locate_source(source)
    if isinstance(origin, HubName):
        if output is None:
            if source_language is not None or target_language is not None:
                raise ConfigError(f"{origin}: languages are set in a folder; specify one with -o")
            print(f"{folder_of_model(Path(source))}: {origin}, which all commands now find by this name")
            return
        from headway.interop.hub.conversion import downloaded_source

        prepare_client()
        folder, opened = checked_output_folder(output), downloaded_source(origin)
    else:
        default = sibling_folder(origin.with_suffix("") if origin.is_file() else origin, "headway")
        folder, opened = checked_output_folder(output or default, origin), nullcontext(f"{form}:{origin}")
    with opened as opened_source:
        imported = import_from(opened_source, source_language=source_language, target_language=target_language)
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
    """Compare a language model in int8 with float32, print the result, and store it."""
    from headway.engine.int8_check import write_int8_check
    from headway.predict import LanguageModel

    model = LanguageModel(bundle, device="cpu", precision="auto")
    if (check := model.int8_check) is not None:
        write_int8_check(check, folder)
        print(f"on a CPU it generates in {model.precision} by default: {check.describe()}")
