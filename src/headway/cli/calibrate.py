"""``headway calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options


def calibrate(
    model: Annotated[Path, typer.Argument(help="A model folder. The calibration is written into it.")],
    source: Annotated[
        Path, typer.Option(help="Source text of the model's domain that it was not trained on, one sentence per line.")
    ],
    train: Annotated[
        Path | None, typer.Option(help="Source text of the training data, so that token frequencies become more exact.")
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    precision: options.PrecisionOption = "auto",
) -> None:
    """Learn what the source text of a model looks like, so that translate flags text from far outside as unlikely.

    Training does this with the development set. Imported models and models of older versions have no calibration yet.
    """
    from headway.cli.line_io import input_lines
    from headway.errors import ConfigError
    from headway.predict import calibration, load_translator

    translator = load_translator(model, precision=precision)
    texts, training = list(input_lines(source)), list(input_lines(train)) if train else []
    found = calibration.calibrate(translator, texts, training, target_language=to, source_language=from_)
    if found is None:
        raise ConfigError(
            f"{source}: too few texts that can be translated; a calibration needs at least {calibration.MIN_TEXTS}, so "
            "that at most 1 % of the texts of its domain are flagged, with 99 % confidence"
        )
    calibration.write_calibration(found, model)
    print(f"{model}: calibrated on {found.texts:,} texts of {source}")
