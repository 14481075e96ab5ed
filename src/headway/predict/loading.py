"""The model in a folder, whatever it is for."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import read_task
from headway.predict.classifier import Classifier, load_classifier
from headway.predict.translator import Translator, load_translator

__all__ = ["load"]


def load(folder: str | Path, *, device: str | None = None) -> Translator | Classifier:
    """The model in ``folder``, ready for use, on ``device`` (None: a GPU where there is one).

    :func:`load_translator` and :func:`load_classifier` ask for one of the two, with all settings that it has.

    Raises:
        BundleError: It is not a model folder, or a file in it is missing, damaged or foreign.
    """
    if read_task(Path(folder)).kind == "classification":
        return load_classifier(folder, device=device)
    return load_translator(folder, device=device)
