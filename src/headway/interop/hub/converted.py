"""Store converted models of the Hugging Face Hub in a folder beside the cache of the Hub's client.

    hub/                                the cache of the client
    hub-headway/
        Helsinki-NLP--opus-mt-de-en/
            revisions/main.json         the commit, and the name of the model folder
            3f0c.../                    a model folder, named by a hash of the files that it was converted from
            lock                        locked by the process that converts the model

The file of a revision is written last, so a partially converted model is never loaded. Reading requires neither the
client nor a network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from headway.errors import ConfigError
from headway.interop.hub.names import HubName
from headway.storage import atomic_write_text, lock_file

_DIGEST = re.compile(r"[0-9a-f]{32}")
_REVISIONS = "revisions"


@dataclass(frozen=True)
class ConvertedModel:
    """A converted model from the Hub.

    Attributes:
        name: The name of the model on the Hub.
        commit: The commit that the model was converted from.
        folder: The folder of the converted model.
    """

    name: HubName
    commit: str
    folder: Path

    @property
    def num_bytes(self) -> int:
        """Size of the model folder in bytes."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def client_cache() -> Path:
    """Return the folder of the client's cache, which is determined by the client's environment variables."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{user_cache}/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(cache)).expanduser()


def converted_models_folder() -> Path:
    """Return the folder of all converted models."""
    cache = client_cache()
    return cache.with_name(f"{cache.name}-headway")


def converted_folder(name: HubName, digest: str = "") -> Path:
    """Return the folder of a model's converted revisions or, with a hash ``digest``, a model folder in it."""
    return converted_models_folder() / name.name.replace("/", "--") / digest


def find_converted(name: HubName) -> ConvertedModel | None:
    """Return the converted model for a name, or None if there is none."""
    try:
        saved = json.loads(_record(name).read_text(encoding="utf-8"))
        commit, digest = saved["commit"], saved["folder"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(commit, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return None
    folder = converted_folder(name, digest)
    return ConvertedModel(name, commit, folder) if (folder / "config.json").is_file() else None


def converted_models() -> list[ConvertedModel]:
    """Return all converted models, sorted by name."""
    records = sorted(converted_models_folder().glob(f"*/{_REVISIONS}/*.json"))
    return [model for model in map(_read_record, records) if model is not None]


def record_converted(model: ConvertedModel) -> None:
    """Record that the name of ``model`` refers to its folder, and delete folders that no revision uses any more."""
    content = {"commit": model.commit, "folder": model.folder.name}
    atomic_write_text(_record(model.name), json.dumps(content) + "\n")
    _delete_unused(model.name)


def remove_converted(name: HubName) -> ConvertedModel:
    """Delete a converted model, and return its description. The files in the client's cache are kept.

    Raises:
        ConfigError: No such model has been converted; the message lists the converted models.
    """
    model = find_converted(name)
    if model is None:
        listed = ", ".join(str(model.name) for model in converted_models()) or "none"
        raise ConfigError(f"{name}: not converted; converted models: {listed}")
    with lock_converted(name):
        _record(name).unlink(missing_ok=True)
        _delete_unused(name)
    return model


def converted_model_title(folder: Path) -> str | None:
    """Return the name, without organization, of the model converted to ``folder``, or None for other folders."""
    home = folder.absolute().parent
    return home.name.rpartition("--")[2] if home.parent == converted_models_folder().absolute() else None


@contextmanager
def lock_converted(name: HubName) -> Iterator[None]:
    """Lock the converted revisions of a model, after waiting for other processes to release the lock.

    At the end, the model's folder is deleted if it contains no revision.
    """
    folder = converted_folder(name)
    with lock_file(folder / "lock"):
        try:
            yield
        finally:
            if not any(folder.glob(f"{_REVISIONS}/*.json")):
                shutil.rmtree(folder, ignore_errors=True)  # while holding the lock, for which others may be waiting


def _record(name: HubName) -> Path:
    return converted_folder(name) / _REVISIONS / f"{quote(name.revision, safe='')}.json"


def _read_record(path: Path) -> ConvertedModel | None:
    try:
        return find_converted(HubName(path.parents[1].name.replace("--", "/"), unquote(path.stem)))
    except ConfigError:  # this module has not written the file
        return None


def _delete_unused(name: HubName) -> None:
    models = map(_read_record, (converted_folder(name) / _REVISIONS).glob("*.json"))
    used = {model.folder for model in models if model is not None}
    for folder in converted_folder(name).iterdir():
        if _DIGEST.fullmatch(folder.name) and folder not in used:
            shutil.rmtree(folder, ignore_errors=True)
