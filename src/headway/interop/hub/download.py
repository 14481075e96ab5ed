"""Download the files of a model that are needed to import it with the Hub's own client, and verify their hashes.

The client (`huggingface_hub`) provides the cache, tokens, the offline mode, mirrors (``HF_ENDPOINT``) and resumed
downloads, but it checks only the sizes of files. This module also compares each file with the hash on the Hub, which is
the SHA-256 of a file in Git LFS or the SHA-1 of a small file's Git object.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError, HeadwayError, HubError, MissingPackageError, OutputError
from headway.interop.hub.converted import client_cache
from headway.interop.hub.names import HubName
from headway.interop.hub.needed_files import (
    CONFIG_FILE,
    WEIGHT_FILES,
    RepositoryFormat,
    is_weight_index,
    needed_files,
    repository_format,
)
from headway.version import __version__

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")
_FILE = re.compile(r"\w[\w.-]*", re.ASCII)  # file names that an index of the weights may contain
_OTHER_MODELS = "CTranslate2 (model.bin), Marian (.npz) or Argos Translate (.argosmodel) model"
_CONVERSION = "2"  # incremented when the conversion of the same files gives a different model folder
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class DownloadedModel:
    """The downloaded files of a model.

    Attributes:
        commit: The hash of the commit.
        model_format: The format of the model.
        files: The local path of each file, keyed by the file's name in the repository.
        digest: A hash of all files, which is the name of the converted model folder.
    """

    commit: str
    model_format: RepositoryFormat
    files: Mapping[str, Path]
    digest: str


@dataclass(frozen=True)
class _Listed:
    """The size of a file in the repository, and its SHA-256 or the SHA-1 of its Git object, if they are known."""

    size: int | None
    digest: str | None


def download(name: HubName, check: Callable[[Path], None], *, must_ask: bool = False) -> DownloadedModel:
    """Download the files needed to import the model, unless they are already in the client's cache.

    Without a network, or in the client's offline mode, the files in the cache are used, unless ``must_ask`` is True.
    ``check`` is called with the folder that contains the `transformers` config.json before anything else is downloaded.

    Raises:
        HubError: The model does not exist or is not accessible, the Hub cannot be reached, or a file is damaged.
        OutputError: The files cannot be written, for example because the disk is full.
        MissingPackageError: `huggingface_hub` is not installed.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise MissingPackageError(str(name), "huggingface_hub") from None
    client = huggingface_hub.HfApi(library_name="headway", library_version=__version__)
    files: dict[str, Path] = {}
    with _client_errors(name):
        if must_ask:
            client.model_info(name.name, revision=name.revision)
        try:
            files[CONFIG_FILE] = Path(client.hf_hub_download(name.name, CONFIG_FILE, revision=name.revision))
            folder = files[CONFIG_FILE].parent
        except huggingface_hub.errors.EntryNotFoundError as error:
            if isinstance(error, huggingface_hub.errors.LocalEntryNotFoundError):
                raise
            folder = _snapshot(client, name)
    commit = folder.name
    listing = _listing(client, name, commit, folder)
    digests = {file: _verified(name, file, path, listing) for file, path in files.items()}
    config = _read_json(name, files[CONFIG_FILE]) if files else {}
    model_format = repository_format(listing, config)
    if model_format is None and not files:
        raise HubError(f"{name}: the repository contains neither a config.json nor a {_OTHER_MODELS}")
    if model_format in ("huggingface", None):
        check(folder)
    try:
        wanted = needed_files(model_format or "huggingface", listing)
    except HubError as error:
        raise error.with_location(str(name)) from None
    _check_space(name, [listing[file] for file in wanted if not (folder / file).exists()])
    while missing := [file for file in wanted if file not in files]:
        file = missing[0]
        with _client_errors(name):
            files[file] = Path(client.hf_hub_download(name.name, file, revision=commit))
        digests[file] = _verified(name, file, files[file], listing)
        if is_weight_index(file):
            parts = _parts(name, _read_json(name, files[file]))
            _check_space(name, [listing[part] for part in parts if part in listing and not (folder / part).exists()])
            wanted += parts
    content = "\n".join(f"{digests[file]} {file}" for file in sorted(digests))
    digest = hashlib.blake2b(f"{_CONVERSION}\n{content}".encode(), digest_size=16).hexdigest()
    return DownloadedModel(commit, model_format or "huggingface", files, digest)


def _snapshot(client: Any, name: HubName) -> Path:
    """Return the folder in the client's cache for the files of a repository that has no config.json."""
    commit = client.model_info(name.name, revision=name.revision).sha
    return client_cache() / f"models--{name.name.replace('/', '--')}" / "snapshots" / str(commit)


def _listing(client: Any, name: HubName, commit: str, folder: Path) -> dict[str, _Listed]:
    """Return a commit's files as listed by the Hub or, if it cannot be reached, the files in the client's cache."""
    try:
        with _client_errors(name):
            info = client.model_info(name.name, revision=commit, files_metadata=True)
            return {
                file.rfilename: _Listed(file.size, file.lfs.sha256 if file.lfs is not None else file.blob_id)
                for file in info.siblings or ()
            }
    except HubError:
        cached = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        if not set(WEIGHT_FILES) & set(cached):
            raise
        return dict.fromkeys(cached, _Listed(None, None))


def _verified(name: HubName, file: str, path: Path, listing: Mapping[str, _Listed]) -> str:
    """Return the SHA-256 of a downloaded file, after comparing the file with its hash on the Hub.

    The files in the client's cache are named by their ETags, which are also these hashes.

    Raises:
        HubError: The hashes differ. The file is removed from the cache, so that it will be downloaded again.
    """
    stored = path.parent / path.readlink() if path.is_symlink() else path
    expected = (listing[file].digest if file in listing else None) or stored.name
    try:
        with path.open("rb") as content:
            actual = digest = hashlib.file_digest(content, "sha256").hexdigest()
        if _SHA1.fullmatch(expected):
            git_object = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
            with path.open("rb") as content:
                actual = hashlib.file_digest(content, lambda: git_object).hexdigest()
    except OSError as error:
        raise HubError(f"{name}: {path} cannot be read ({error.strerror})") from None
    if actual != expected and (_SHA1.fullmatch(expected) or _SHA256.fullmatch(expected)):
        path.unlink(missing_ok=True)
        stored.unlink(missing_ok=True)
        raise HubError(
            f"{name}: {file} is damaged: its hash is {actual}, but the Hub's hash is {expected}; the file was removed "
            "from the cache, so the same command downloads it again"
        )
    return digest


def _read_json(name: HubName, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HubError(f"{name}: {path.name} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise HubError(f"{name}: {path.name} is not a JSON object")
    return content


def _parts(name: HubName, index: Mapping[str, Any]) -> list[str]:
    """Return the files listed by an index of the weights. They must be in the folder of the index."""
    weights = index.get("weight_map")
    parts = list(weights.values()) if isinstance(weights, dict) else []
    if not parts or not all(isinstance(part, str) and _FILE.fullmatch(part) for part in parts):
        raise HubError(f"{name}: the index of the weights is damaged; expected weight_map with a file for each tensor")
    return sorted(set(parts))


def _check_space(name: HubName, missing: list[_Listed]) -> None:
    """Raise an error if the disk of the client's cache does not have enough space for a download."""
    needed, cache = sum(file.size or 0 for file in missing), client_cache()
    existing = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise OutputError(
            f"{name}: {needed / 1e6:,.0f} MB to download, but {existing} has only {free / 1e6:,.0f} MB of free space; "
            "free some space, or set HF_HOME to a folder on another disk"
        )


@contextmanager
def _client_errors(name: HubName) -> Iterator[None]:
    """Convert all errors of the client, which have multi-line messages, to errors with one-line messages."""
    try:
        yield
    except Exception as error:
        raise _explained(name, error) from error


def _explained(name: HubName, error: Exception) -> HeadwayError:
    """Convert an error of the client to the Headway error to raise."""
    from huggingface_hub import errors

    chain = _causes(error)
    answers = [cause for cause in chain if isinstance(cause, errors.HfHubHTTPError)]
    status = answers[0].response.status_code if answers else None
    is_offline = any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in chain)
    match answers[0] if answers else error:
        case errors.GatedRepoError():
            return HubError(
                f"{name}: this is a gated model, which requires its owner's permission; request access on the model's "
                "page, and set your token (hf auth login, or HF_TOKEN)"
            )
        case errors.DisabledRepoError():
            return HubError(f"{name}: the Hub has disabled this model")
        case errors.RevisionNotFoundError():
            return HubError(f"{name}: the model has no revision {name.revision!r}")
        case errors.RepositoryNotFoundError():
            return HubError(
                f"{name}: no such model on the Hub, or the model is private; check the name, or set your token (hf "
                "auth login, or HF_TOKEN)"
            )
        case errors.OfflineModeIsEnabled():
            return HubError(f"{name}: the client is offline (HF_HUB_OFFLINE), so the Hub cannot be queried")
        case errors.LocalEntryNotFoundError():
            why = (
                "the client is offline (HF_HUB_OFFLINE)"
                if is_offline
                else f"the Hub cannot be reached ({_first_line(chain[-1])})"
            )
            return HubError(f"{name}: not in the cache, and {why}")
        case errors.EntryNotFoundError():
            return HubError(f"{name}: the repository has no such file ({_first_line(error)})")
        case errors.HFValidationError():
            return ConfigError(f"{name}: {_first_line(error)}")
    if status is not None:
        return HubError(f"{name}: {_STATUS.get(status, f'the Hub answers with status {status}; try again later')}")
    if isinstance(error, OSError) and error.errno in _FULL_DISK:
        return OutputError(f"{name}: cannot be downloaded to {client_cache()} (the disk is full); free some space")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return OutputError(f"{name}: cannot be downloaded to {error.filename} ({error.strerror})")
    if type(error) is OSError:  # the client received fewer bytes than the file has
        return HubError(f"{name}: the download is incomplete ({_first_line(error)}); try again")
    return HubError(f"{name}: cannot be downloaded ({type(error).__name__}: {_first_line(error)})")


_STATUS = {
    401: "the Hub does not accept your token; set another token (hf auth login, or HF_TOKEN)",
    403: "your token does not grant access to this model; ask its owner for access, or set another token (HF_TOKEN)",
    429: "too many requests to the Hub; wait a few minutes, or set your token (hf auth login, or HF_TOKEN)",
}


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, with the original cause last."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    return chain


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
