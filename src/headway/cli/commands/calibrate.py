"""``headway calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.model_folders import MODEL

GROUP = CommandGroup.DEPLOY


def calibrate(
    model: Annotated[Path, typer.Argument(help="A model folder. The calibration is written into it."), MODEL],
    source: Annotated[
        Path, typer.Option(help="Text from the model's domain that was not used for training, one sentence per line.")
    ],
    train: Annotated[
        Path | None,
        typer.Option(help="Source text of the training data, which makes the token frequencies more accurate."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Translations of --source, line by line. They enable the flag forced, for glossary entries and "
            "phrases of --include that fit badly."
        ),
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
) -> None:
    """Learn what source text in a model's domain looks like, so that translate can flag other text as unlikely.

    Training does this with the development set. Run this command for imported models, and for models that were trained
    with an older version of Headway.
    """
    from headway.cli.line_io import read_input_lines
    from headway.errors import ConfigError, DataError
    from headway.hardware import keep_freed_memory
    from headway.predict import load_translator
    from headway.predict.translation.calibrate import calibrate as calibrate_translator
    from headway.predict.translation.calibration import MIN_TEXTS, write_calibration

    keep_freed_memory()
    translator = load_translator(model, device=device, precision=precision)
    texts, training = list(read_input_lines(source)), list(read_input_lines(train)) if train else []
    references = list(read_input_lines(reference)) if reference else []
    if reference is not None and len(references) != len(texts):
        raise DataError(
            f"{source} has {len(texts):,} lines and {reference} has {len(references):,}; expected a reference for "
            "each source"
        )
    calibration = calibrate_translator(
        translator, texts, training, references=references, target_language=to, source_language=from_
    )
    if calibration is None:
        raise ConfigError(
            f"{source}: too few texts can be translated; calibration needs at least {MIN_TEXTS} to ensure with 99 % "
            "confidence that at most 1 % of the domain's texts are flagged"
        )
    write_calibration(calibration, model)
    print(f"{model}: calibrated on {calibration.texts:,} texts of {source}")
