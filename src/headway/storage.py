"""Atomic writes of files and folders, checksums and file locks.

An atomic write fills a staging folder next to the target, flushes it to disk and renames its content to the target.
Each writer has a separate staging folder, which it keeps locked. When a writer is killed, the system releases its lock,
and the next writer of the same target removes the abandoned staging folder.
"""

from __future__ import annotations

import errno
import functools
import glob
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from headway.errors import CheckpointError, OutputError


def checksum(path: Path) -> str:
    """Return the BLAKE2b hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces ``path`` on exit. After an error, ``path`` is unchanged.

    Threads, processes and machines may write the same path at the same time: the last one to exit wins. The mode of an
    existing file is kept. A new file gets the default mode. With ``private``, only this user can read the file. A
    symbolic link is followed. A pipe or a device cannot be replaced, so it is written to directly.
    """
    path = _followed(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    try:
        with _staging_folder(path) as staging:
            new = staging / _NEW
            yield new
            _flush(new)  # before the mode is set, because it may forbid reading
            new.chmod(stat.S_IRUSR | stat.S_IWUSR if private else _mode(path, staging))
            new.replace(path)
            _flush_entries(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from None


def atomic_write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Replace the content of the file ``path`` with ``text`` in UTF-8, as :func:`atomic_write` does."""
    with atomic_write(path, private=private) as new:
        new.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces ``path`` on exit. After an error, ``path`` is unchanged.

    Threads, processes and machines may write the same path at the same time: the last one to exit wins. The mode of an
    existing folder is kept. If ``path`` is a symbolic link, the folder that it points to is replaced. If a process is
    killed between the two renames that replace a folder, the next call restores the old folder.
    """
    path = _followed(path)
    try:
        _recover_from_older_version(path)
        with _staging_folder(path) as staging:
            new = staging / _NEW
            new.mkdir()
            yield new
            for written in (new, *new.rglob("*")):
                _flush(written)
            _replace_folder(path, new, staging / _OLD)
            _flush_entries(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from None


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Reserve ``folder`` for this training run.

    The file ``lock`` in the folder is locked, and ``lock.pid`` contains the id of the process that locked it.
    Incomplete files and folders left by killed processes are removed.

    Raises:
        CheckpointError: Another process is using the folder.
    """
    holder = folder / "lock.pid"
    try:
        with lock_file(folder / "lock", wait=False):
            holder.unlink(missing_ok=True)
            with holder.open("x", encoding="ascii") as file:  # mode "x" never follows a link
                file.write(f"{os.getpid()}\n")
            for remains in folder.glob(".*.part"):
                if remains.is_file():  # written by a version without staging folders
                    remains.unlink(missing_ok=True)
                elif _STAGING_NAME.fullmatch(remains.name):
                    _remove_if_abandoned(remains)
            yield
    except Timeout:
        pid = "?"
        with suppress(OSError):
            pid = holder.read_text(encoding="ascii", errors="replace").strip() or pid
        raise CheckpointError(
            f"{folder}: process {pid} is training in this folder; wait for it, stop it (kill {pid}; it saves first), "
            "or choose another --run"
        ) from None


@contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock the file ``path``. If another process has locked it, wait, or raise Timeout if ``wait`` is False.

    The lock also applies to processes on other machines that share the file system. If the file system does not support
    locks, a warning is emitted. The system releases the lock when the process ends, even if it is killed. The file
    itself is not removed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o666))
    except OSError as error:
        raise _cannot_write(path, error) from None
    lock = FileLock(path, fallback_to_soft=False)  # a soft lock would treat the file as locked whenever it exists
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise
    except OSError as error:
        warnings.warn(
            f"{path.parent}: this file system does not support locks ({error.strerror}); train one run at a time "
            "in this folder",
            stacklevel=5,
        )
    try:
        yield
    finally:
        lock.release()


class TemporaryFolder:
    """A new, locked folder in the system's temporary directory that only this user can read.

    Args:
        prefix: Prefix of the folder's name.

    Attributes:
        path: Path of the folder.
    """

    def __init__(self, prefix: str) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            with suppress(FileNotFoundError, BlockingIOError):  # another process has just removed it as abandoned
                self._lock = _lock(self.path)
                return

    def remove(self) -> None:
        """Remove the folder and its content."""
        _remove(self.path, self._lock)

    @staticmethod
    def remove_abandoned(prefix: str) -> None:
        """Remove the folders of this user's killed processes whose names begin with ``prefix``.

        Folders without a lock were created by older versions. They are removed a week after their last change.
        """
        if sys.platform == "win32":
            return
        with suppress(OSError):
            for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
                status = folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    continue
                if not (folder / _LOCK).exists() and _idle_s(folder) <= _ABANDONED_AFTER_S:
                    continue
                with suppress(OSError):
                    lock = _lock(folder)
                    if lock.is_held:
                        _remove(folder, lock)
                    else:
                        lock.release()


def user_cache_folder() -> Path:
    """Return the user's folder for Headway's caches, or raise :class:`RuntimeError` if there is no home directory."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "headway" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "headway"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "headway"


def _mode(path: Path, staging: Path) -> int:
    """Return the mode of the file ``path``, or the default mode of new files if it does not exist."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        (staging / _DEFAULT_MODE).touch()
        return stat.S_IMODE((staging / _DEFAULT_MODE).stat().st_mode)


def _followed(path: Path) -> Path:
    """Return ``path`` with symbolic links followed."""
    try:
        path = path.resolve()
        path.exists()  # raises an error if the folder cannot be searched, or if the name is too long
    except RuntimeError:  # Python before 3.13 raises this for links that form a cycle
        raise _cannot_write(path, OSError(errno.ELOOP, os.strerror(errno.ELOOP))) from None
    except OSError as error:
        raise _cannot_write(path, error) from None
    return path


# A staging folder is named after its target, its machine and a random number. It contains the new content, later the
# replaced folder, and a file that is locked while the writer is alive.
_NEW, _OLD, _LOCK, _DEFAULT_MODE = "new", "old", "lock", "mode"
_STAGING_NAME = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{8}-[0-9a-f]{8}\.part", re.DOTALL)
_MAX_NAME_BYTES = 100  # longer names are hashed, so that staging names fit: some file systems allow 143 bytes
# time without changes, for folders whose locks do not show whether the writer is alive
_ABANDONED_AFTER_S = 7 * 24 * 3600
_MAX_ATTEMPTS = 100
_NO_LINK = vars(os).get("O_NOFOLLOW", 0)  # Windows does not have it


@contextmanager
def _staging_folder(path: Path) -> Iterator[Path]:
    """Yield a new, locked, private folder next to ``path``, after removing the staging folders of killed writers."""
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _flush_entries(folder.parent)
    _recover(path)
    staging, lock = _create_staging_folder(path)
    try:
        yield staging
    finally:
        _remove(staging, lock)
        _remove_tree(staging)  # remove the rest, because some systems cannot remove locked files


def _create_staging_folder(path: Path) -> tuple[Path, _Lock]:
    attempts = 0
    while True:
        staging = path.parent / f".{_staged_name(path)}.{_machine()}-{secrets.token_hex(4)}.part"
        attempts += 1
        try:
            staging.mkdir(mode=0o700)
            try:
                return staging, _lock(staging)
            except BaseException:
                with suppress(OSError):
                    staging.rmdir()
                raise
        # The name may already exist (possibly as a link), or another writer may remove the folder before it is locked.
        except (FileExistsError, FileNotFoundError, BlockingIOError):
            if attempts == _MAX_ATTEMPTS:
                raise


def _staged_name(path: Path) -> str:
    """Return the component of a staging folder's name that represents the name of ``path``."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= _MAX_NAME_BYTES else hashlib.blake2b(name, digest_size=16).hexdigest()


@functools.cache
def _machine() -> str:
    """Return a hash that identifies this machine until it restarts."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        identity = platform.node()
    return hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class _Lock:
    """The opened lock file of a staging folder; ``is_held`` is False if the file system has no locks."""

    descriptor: int
    is_held: bool

    def release(self) -> None:
        """Unlock and close the file. Closing it is not enough if a forked process also has the file open."""
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        os.close(self.descriptor)


def _lock(staging: Path) -> _Lock:
    """Lock a staging folder. Raises :class:`BlockingIOError` if it is locked, or was removed before it was locked."""
    descriptor = os.open(staging / _LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
    try:
        import fcntl  # Windows does not have it

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some file systems report EACCES instead of EAGAIN
        os.close(descriptor)
        raise BlockingIOError(errno.EAGAIN, "another writer has locked it") from None
    except (ImportError, OSError):
        return _Lock(descriptor, is_held=False)
    if os.fstat(descriptor).st_nlink == 0:
        os.close(descriptor)
        raise BlockingIOError(errno.EAGAIN, "another writer has removed it")
    return _Lock(descriptor, is_held=True)


def _remove(staging: Path, lock: _Lock) -> None:
    """Remove a staging folder while it is locked, so that no other process uses it or restores from it."""
    _remove_tree(staging)
    lock.release()
    with suppress(OSError):
        staging.rmdir()  # on a network file system, the open lock file remains until it is closed


def _remove_tree(folder: Path) -> None:
    """Remove a folder and its content as far as possible, even if the modes of folders forbid it."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and not folder.is_symlink():
        with suppress(OSError):
            folder.chmod(stat.S_IRWXU)
        for parent, names, _ in os.walk(folder):  # os.walk lists a folder after its mode has been changed
            for child in (Path(parent, name) for name in names):
                if not child.is_symlink():
                    with suppress(OSError):
                        child.chmod(stat.S_IRWXU)
        shutil.rmtree(folder, ignore_errors=True)


def _recover(path: Path) -> None:
    """Restore ``path`` if a killed writer moved it, and remove the staging folders of killed writers."""
    name = _staged_name(path)
    with suppress(OSError):  # the folder may be writable, but not readable
        for sibling in path.parent.iterdir():
            match = _STAGING_NAME.fullmatch(sibling.name)
            if match and match["target"] == name:
                _remove_if_abandoned(sibling, path)


def _remove_if_abandoned(staging: Path, path: Path | None = None) -> None:
    """Remove a staging folder if its writer was killed. If the target ``path`` is missing, restore it first.

    If ``path`` is None, a staging folder that contains a replaced folder is kept.

    On some network file systems, locks apply only to processes of the same machine. An unlocked folder created on
    another machine, or before a restart, is therefore removed only if nothing in it has changed for a week. Restoring
    is always safe: a writer that is alive replaces the restored folder (:func:`_replace_folder`).
    """
    if staging.is_symlink() or not staging.is_dir():
        return
    try:
        lock = _lock(staging)
    except OSError:  # its writer is alive, or it belongs to another user
        return
    old = staging / _OLD
    if path is not None and not path.exists():
        with suppress(OSError):
            old.rename(path)
    is_needed = old.exists() and (path is None or not path.exists())
    writer_is_dead = (lock.is_held and f".{_machine()}-" in staging.name) or _idle_s(staging) > _ABANDONED_AFTER_S
    if writer_is_dead and not is_needed:
        _remove(_renamed(staging), lock)
    else:
        lock.release()


def _renamed(staging: Path) -> Path:
    """Return the new name of a staging folder. A writer that has just created it can then not lock it any more.

    Otherwise the writer might create the lock file again while the folder is being removed, and lose its data.
    """
    prefix, _, _ = staging.name.rpartition("-")
    renamed = staging.with_name(f"{prefix}-{secrets.token_hex(4)}.part")
    try:
        staging.rename(renamed)
    except OSError:  # some systems do not rename a folder with an open file
        return staging
    return renamed


def _idle_s(folder: Path) -> float:
    """Return the number of seconds since the last change in a folder; 0 while it is changing."""
    try:
        return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return 0.0


def _replace_folder(path: Path, new: Path, old: Path) -> None:
    """Rename the folder ``path`` to ``old``, and ``new`` to ``path``, with the same mode.

    After an error, ``path`` is unchanged. The system moves a folder only if its owner has write permission for it, so
    both folders get this permission until they are in place.
    """
    mode = writable = 0  # the old and the new mode; equal if no change is needed
    try:
        while True:
            with suppress(FileNotFoundError):
                file_mode = path.stat().st_mode
                if not stat.S_ISDIR(file_mode):
                    raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder")
                mode = stat.S_IMODE(file_mode)
                writable = mode | stat.S_IRWXU
                new.chmod(writable)
                if writable != mode:
                    path.chmod(writable)
                path.rename(old)
            try:
                new.rename(path)
                if writable != mode:
                    path.chmod(mode)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            # Another writer put its folder there between the two renames; replace it as well.
            _remove_tree(old)
    except BaseException:
        with suppress(OSError):
            if not path.exists():
                old.rename(path)
        with suppress(OSError):
            if writable != mode:
                path.chmod(mode)
        raise


def _recover_from_older_version(path: Path) -> None:
    """Restore or remove a folder left by a killed process of a version without staging folders."""
    old = path.parent / f".{path.name}.old"
    with suppress(OSError):
        if not path.exists():
            old.rename(path)
    for remains in (old, path.parent / f".{path.name}.part"):
        shutil.rmtree(remains, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error.strerror or error}); its previous content is unchanged")


def _flush_entries(folder: Path) -> None:
    """Flush a folder's entries to disk. The files are already in place, and some file systems cannot flush folders."""
    with suppress(OSError):
        _flush(folder)


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
