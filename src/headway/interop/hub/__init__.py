"""Models of the Hugging Face Hub by name: downloaded once, converted once, and then loaded like any model folder.

:func:`model_folder` is the only place in which a name becomes a folder. Commands call it for their arguments, and
Python for the arguments of the functions that load models.
"""

from __future__ import annotations

from pathlib import Path

from headway.interop.hub.names import parse_model

__all__ = ["model_folder"]


def model_folder(source: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model: a path as it is, or the folder to which a model of the Hub is converted.

    A model that is converted already is found without a network, and without importing the client.

    Args:
        source: A model folder, or a name such as ``hf:Helsinki-NLP/opus-mt-de-en``.
        revision: A branch, a tag or a commit of a name. None means "main".

    Raises:
        ConfigError: The name is not valid, or a revision is given for a local folder.
        HeadwayError: The model cannot be downloaded, verified, converted or written.
    """
    model = parse_model(source, revision=revision)
    if isinstance(model, Path):
        return model
    from headway.interop.hub.converted import find_converted

    if (known := find_converted(model)) is not None:
        return known.folder
    from headway.interop.hub.conversion import convert

    return convert(model).folder
