"""Where commands write model folders: under which name, and over what they may be written."""

from __future__ import annotations

from pathlib import Path

from headway.errors import ConfigError

__all__ = ["beside", "folder_to_write"]


def beside(folder: Path, suffix: str) -> Path:
    """FOLDER-suffix next to a folder, also where that is called "." or ".."."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.parent / f"{named.name}-{suffix}"


def folder_to_write(folder: Path, source: Path) -> Path:
    """``folder``, if nothing is lost but an older model when it is replaced by one that is made of ``source``.

    Raises:
        ConfigError: It is or holds ``source`` or where the command runs, or something that is not a model.
    """
    whole = folder.resolve()
    if source.resolve().is_relative_to(whole):
        raise ConfigError(f"{folder}: what is read from is in it and would be lost; give another folder (-o)")
    if Path.cwd().is_relative_to(whole):
        raise ConfigError(f"{folder}: the command runs in it, so it cannot be replaced; give another folder (-o)")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder}: holds files, but no model (config.json), and would be replaced; give a new folder (-o), or "
            "empty it"
        )
    return folder
