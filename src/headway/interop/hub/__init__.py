"""Load models of the Hugging Face Hub by name. A model is downloaded and converted once, then loaded like any folder.

Only :func:`model_folder` converts a name to a folder. It is called for the arguments of commands and for the arguments
of the Python functions that load models.
"""

from __future__ import annotations

from pathlib import Path

from headway.interop.hub.names import parse_model_source

__all__ = ["model_folder"]


def model_folder(source: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model: a local path unchanged, or the folder of a model converted from the Hub.

    A model that has already been converted is found without a network and without importing the client.

    Args:
        source: A model folder, or a name such as ``hf:Helsinki-NLP/opus-mt-de-en``.
        revision: A branch, a tag or a commit, for a name. None means "main".

    Raises:
        ConfigError: The name is not valid, or a revision is passed for a local folder.
        HeadwayError: The model cannot be downloaded, verified, converted or written.
    """
    model = parse_model_source(source, revision=revision)
    if isinstance(model, Path):
        return model
    from headway.interop.hub.converted import find_converted

    if (known := find_converted(model)) is not None:
        return known.folder
    from headway.interop.hub.conversion import convert

    return convert(model).folder
