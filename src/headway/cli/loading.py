"""Load the models that a command runs, alone or as an ensemble, on a device that suits the number of processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headway.cli import options
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.predict import LanguageModel, Translator


def device_for_workers(device: options.Device, workers: int) -> options.Device:
    """Return the device for ``workers`` processes that each load the model. Several processes use the CPU.

    Raises:
        ConfigError: Several processes would share a GPU.
    """
    if workers == 1:
        return device
    if device == "cuda":
        raise ConfigError(
            f"--workers {workers}: several processes would share the GPU; leave out --workers, or use --device cpu"
        )
    if device == "auto":
        from headway.hardware import choose_device

        if choose_device().type == "cuda":
            print(
                "headway: with --workers, the model runs on the CPU; leave out --workers to use the GPU",
                file=sys.stderr,
            )
    return "cpu"


def load_ensemble(
    load: Callable[[], Translator],
    other_models: Sequence[Path] | None,
    device: options.Device,
    precision: options.Precision,
) -> Translator:
    """Return the translator that ``load`` returns, or an ensemble of it and the models in the folders ``other_models``.

    If a model uses a plain search instead of an optimized one, print the reason, except in worker processes, each of
    which would repeat it.
    """
    from headway.predict import Translator, load_translator

    others = [load_translator(other, device=device, precision=precision) for other in other_models or ()]
    translators = [load(), *others]
    for reason in dict.fromkeys(loaded.plain_search_reason for loaded in translators if loaded.plain_search_reason):
        print_in_main_process(reason)
    for note in dict.fromkeys(filter(None, (loaded.precision_note() for loaded in translators))):
        print_in_main_process(f"the model {note}")
    return Translator.ensemble(translators)


def print_in_main_process(message: str) -> None:
    """Print a message on standard error, except in worker processes, each of which would repeat it."""
    from multiprocessing import parent_process

    if parent_process() is None:
        print(f"headway: {message}", file=sys.stderr)


def open_language_model(folder: Path, device: options.Device, precision: options.Precision) -> LanguageModel:
    """Load a language model. If it does not generate in int8, although int8 would be fastest, print the reason."""
    from headway.predict import load_language_model

    model = load_language_model(folder, device=device, precision=precision)
    if note := model.precision_note():
        typer.echo(f"{folder} {note}", err=True)
    return model


def language_from_extension(path: Path) -> str:
    """Return the extension of a file name, which by convention is the file's language, such as ref.zh or ref.zh.gz."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst", ".xz") else path).suffix.removeprefix(".")
