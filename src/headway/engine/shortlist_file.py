"""Write a shortlist to a file in a model folder."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from headway.engine.shortlist import Shortlist
from headway.storage import atomic_write

SHORTLIST_FILE = "shortlist.safetensors"
"""Name of the shortlist file in a model folder."""


def write_shortlist(shortlist: Shortlist, folder: Path) -> None:
    """Write a shortlist to a model folder."""
    with atomic_write(folder / SHORTLIST_FILE) as aside:
        arrays = {"always": shortlist.always_allowed, "table": shortlist.translations}
        save_file(arrays, aside, {"vocabularies": shortlist.vocabulary_fingerprints})
