"""Choose the names of the model folders that commands write, and check that nothing else is overwritten."""

from __future__ import annotations

from pathlib import Path

from headway.errors import ConfigError


def sibling_folder(folder: Path, suffix: str) -> Path:
    """Return the path FOLDER-SUFFIX next to ``folder``, which may also be "." or "..".

    For a converted model from the Hub, the result is NAME-SUFFIX in the working directory.
    """
    from headway.interop.hub.converted import converted_model_title

    if (title := converted_model_title(folder)) is not None:
        return Path(f"{title}-{suffix}")
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.parent / f"{named.name}-{suffix}"


def checked_output_folder(folder: Path, source: Path | None = None) -> Path:
    """Return ``folder`` if a model converted from ``source`` can be written there without losing other files.

    An older model in ``folder`` may be replaced.

    Raises:
        ConfigError: The folder is or contains ``source`` or the working directory, or contains files but no model.
    """
    whole = folder.resolve()
    if source is not None and source.resolve().is_relative_to(whole):
        raise ConfigError(f"{folder}: contains {source}, which would be lost; choose another folder (-o)")
    if Path.cwd().is_relative_to(whole):
        raise ConfigError(f"{folder}: is or contains the working directory; choose another folder (-o)")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder}: contains files but no model (config.json), and would be overwritten; choose a new folder "
            "(-o), or empty this one"
        )
    return folder
