"""Download the files of a model that an import needs, through the Hub's own client, and verify their hashes.

The client (`huggingface_hub`) provides the cache, tokens, the offline mode, mirrors (``HF_ENDPOINT``) and resumed
downloads, but compares only the sizes of files. Here, each file is compared with the hash that the Hub has of it: the
SHA-256 of a file in Git LFS, and the SHA-1 of a small file's Git object.
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
    WEIGHTS,
    RepositoryFormat,
    is_index,
    needed_files,
    repository_format,
)
from headway.version import __version__

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")
_FILE = re.compile(r"\w[\w.-]*", re.ASCII)  # the name of a file with a part of the weights
_OTHER_MODELS = "model of CTranslate2 (model.bin), Marian (.npz) or Argos Translate (.argosmodel)"
_CONVERSION = "2"  # raised when the conversion of the same files gives another model folder
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class DownloadedModel:
    """The downloaded files of a commit.

    Attributes:
        commit: The hash of the commit.
        form: The format of the model.
        files: The path of each file, keyed by its name in the repository.
        digest: A hash of all files, which names the model folder that they are converted to.
    """

    commit: str
    form: RepositoryFormat
    files: Mapping[str, Path]
    digest: str


@dataclass(frozen=True)
class _Listed:
    """What is known of a file of the repository: its size, and its SHA-256 or the SHA-1 of its Git object."""

    size: int | None
    digest: str | None


def download(name: HubName, check: Callable[[Path], None], *, must_ask: bool = False) -> DownloadedModel:
    """Download what an import of the model needs, as far as it is not in the client's cache.

    Without a network, or in the client's offline mode, the files in the cache are used, unless ``must_ask`` is True.
    ``check`` is called with the folder of the config.json of `transformers` before anything else is downloaded.

    Raises:
        HubError: The model does not exist or may not be read, the Hub cannot be reached, or a file is damaged.
        OutputError: The files cannot be written; the disk is full, for example.
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
    form = repository_format(listing, config)
    if form is None and not files:
        raise HubError(f"{name}: the repository has no config.json, and no {_OTHER_MODELS}")
    if form in ("huggingface", None):
        check(folder)
    try:
        wanted = needed_files(form or "huggingface", listing)
    except HubError as error:
        raise error.with_location(str(name)) from None
    _check_space(name, [listing[file] for file in wanted if not (folder / file).exists()])
    while missing := [file for file in wanted if file not in files]:
        file = missing[0]
        with _client_errors(name):
            files[file] = Path(client.hf_hub_download(name.name, file, revision=commit))
        digests[file] = _verified(name, file, files[file], listing)
        if is_index(file):
            parts = _parts(name, _read_json(name, files[file]))
            _check_space(name, [listing[part] for part in parts if part in listing and not (folder / part).exists()])
            wanted += parts
    content = "\n".join(f"{digests[file]} {file}" for file in sorted(digests))
    digest = hashlib.blake2b(f"{_CONVERSION}\n{content}".encode(), digest_size=16).hexdigest()
    return DownloadedModel(commit, form or "huggingface", files, digest)


def _snapshot(client: Any, name: HubName) -> Path:
    """Return the folder in the client's cache for the files of a repository without config.json."""
    commit = client.model_info(name.name, revision=name.revision).sha
    return client_cache() / f"models--{name.name.replace('/', '--')}" / "snapshots" / str(commit)


def _listing(client: Any, name: HubName, commit: str, folder: Path) -> dict[str, _Listed]:
    """Return the files of a commit as the Hub lists them or, if it cannot be reached, those in the client's cache."""
    try:
        with _client_errors(name):
            info = client.model_info(name.name, revision=commit, files_metadata=True)
            return {
                file.rfilename: _Listed(file.size, file.lfs.sha256 if file.lfs is not None else file.blob_id)
                for file in info.siblings or ()
            }
    except HubError:
        cached = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        if not set(WEIGHTS) & set(cached):
            raise
        return dict.fromkeys(cached, _Listed(None, None))


def _verified(name: HubName, file: str, path: Path, listing: Mapping[str, _Listed]) -> str:
    """Return the SHA-256 of a downloaded file, if the file has the hash that the Hub has of it.

    The client's cache names files after their ETags, which are these hashes, too.

    Raises:
        HubError: The hash is another one. The file is removed from the cache, so that it is downloaded again.
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
            f"{name}: {file} is damaged: its hash is {actual}, but that of the Hub is {expected}; the file was removed "
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
    """Return the files that an index of weights lists, which must be in the folder of the index."""
    weights = index.get("weight_map")
    parts = list(weights.values()) if isinstance(weights, dict) else []
    if not parts or not all(isinstance(part, str) and _FILE.fullmatch(part) for part in parts):
        raise HubError(f"{name}: the index of the weights is damaged; expected weight_map with a file for each tensor")
    return sorted(set(parts))


def _check_space(name: HubName, missing: list[_Listed]) -> None:
    """Refuse to begin a download for which the disk of the client's cache has no space."""
    needed, cache = sum(file.size or 0 for file in missing), client_cache()
    existing = next(folder for folder in (cache.absolute(), *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise OutputError(
            f"{name}: {needed / 1e6:,.0f} MB to download, but {existing} has only {free / 1e6:,.0f} MB of free space; "
            "free some, or set HF_HOME to a folder on another disk"
        )


@contextmanager
def _client_errors(name: HubName) -> Iterator[None]:
    """Convert all errors of the client, whose messages have many lines, to errors of one line."""
    try:
        yield
    except Exception as error:
        raise _explained(name, error) from error


def _explained(name: HubName, error: Exception) -> HeadwayError:
    """Return the error to show for an error of the client."""
    from huggingface_hub import errors

    chain = _causes(error)
    answers = [cause for cause in chain if isinstance(cause, errors.HfHubHTTPError)]
    status = answers[0].response.status_code if answers else None
    is_offline = any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in chain)
    match answers[0] if answers else error:
        case errors.GatedRepoError():
            return HubError(
                f"{name}: a gated model, which needs its owner's permission: ask for it on the model's page, and give "
                "your token (hf auth login, or HF_TOKEN)"
            )
        case errors.DisabledRepoError():
            return HubError(f"{name}: the Hub has disabled this model")
        case errors.RevisionNotFoundError():
            return HubError(f"{name}: the model has no revision {name.revision!r}")
        case errors.RepositoryNotFoundError():
            return HubError(
                f"{name}: no such model on the Hub, or a private one; check the name, or give your token (hf auth "
                "login, or HF_TOKEN)"
            )
        case errors.OfflineModeIsEnabled():
            return HubError(f"{name}: the client is offline (HF_HUB_OFFLINE), so the Hub cannot be asked")
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
    if type(error) is OSError:  # of the client: the number of bytes that arrived is not that of the file
        return HubError(f"{name}: the download is incomplete ({_first_line(error)}); try again")
    return HubError(f"{name}: cannot be downloaded ({type(error).__name__}: {_first_line(error)})")


_STATUS = {
    401: "the Hub does not accept your token; give another one (hf auth login, or HF_TOKEN)",
    403: "your token may not read this model; ask its owner for access, or give another token (HF_TOKEN)",
    429: "too many requests to the Hub; wait some minutes, or give your token (hf auth login, or HF_TOKEN)",
}


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, of which the last one is the first that occurred."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    return chain


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
