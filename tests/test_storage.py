import errno
import fcntl
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from headway import storage
from headway.errors import CheckpointError, OutputError
from headway.storage import atomic_write, atomic_write_folder, atomic_write_text, lock_file, lock_run_folder

UNCHANGED = "cannot be written .*; its previous content is unchanged"


def contents(folder: Path) -> dict[str, str]:
    """Return every file below ``folder``, including hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def before(tmp_path: Path) -> dict[str, str]:
    """A file and a folder that already exist."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("old a")
    (tmp_path / "folder" / "b").write_text("old b")
    return contents(tmp_path)


def write_file(tmp_path: Path, then: Callable[[], None] = lambda: None) -> None:
    with atomic_write(tmp_path / "file") as aside:
        aside.write_text("new")
        then()


def write_folder(tmp_path: Path, then: Callable[[], None] = lambda: None) -> None:
    with atomic_write_folder(tmp_path / "folder") as aside:
        (aside / "a").write_text("new a")
        (aside / "deep").mkdir()
        (aside / "deep" / "c").write_text("new c")
        then()


def test_a_file_is_replaced_whole(tmp_path: Path, before: dict[str, str]) -> None:
    seen: list[str] = []
    write_file(tmp_path, lambda: seen.append((tmp_path / "file").read_text()))
    assert seen == ["old"], "the old file must be there until the new one is whole"
    assert contents(tmp_path) == {**before, "file": "new"}


def test_a_folder_is_replaced_whole(tmp_path: Path, before: dict[str, str]) -> None:
    seen: list[dict[str, str]] = []
    write_folder(tmp_path, lambda: seen.append(contents(tmp_path / "folder")))
    assert seen == [{"a": "old a", "b": "old b"}]
    assert contents(tmp_path) == {"file": "old", "folder/a": "new a", "folder/deep/c": "new c"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_parent_folders_are_created(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "x" / "y" / "file") as aside:
        aside.write_text("new")
    with atomic_write_folder(tmp_path / "u" / "v") as aside:
        (aside / "a").write_text("new")
    assert contents(tmp_path) == {"x/y/file": "new", "u/v/a": "new"}


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_changes_nothing(
    tmp_path: Path, before: dict[str, str], write: Callable[..., None], error: type[BaseException]
) -> None:
    def stop() -> None:
        raise error("stop")

    with pytest.raises(error, match="stop"):
        write(tmp_path, stop)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_full_disk_changes_nothing(tmp_path: Path, before: dict[str, str], write: Callable[..., None]) -> None:
    with pytest.raises(OutputError, match=UNCHANGED) as caught:
        write(tmp_path, disk_full)
    assert "No space left on device" in str(caught.value)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_disk_that_is_full_when_flushed_changes_nothing(
    tmp_path: Path, before: dict[str, str], write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OutputError, match=UNCHANGED):
        write(tmp_path)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()])
def test_an_error_between_the_two_renames_restores_the_old_folder(
    tmp_path: Path, before: dict[str, str], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, failed = Path.rename, list[Path]()

    def stop_at_the_second(self: Path, target: Path) -> Path:
        if target == tmp_path / "folder" and self.parent != tmp_path / "folder":
            failed.append(self)
            if len(failed) == 1:
                raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stop_at_the_second)
    with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
        write_folder(tmp_path)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_remains_of_a_killed_process_do_not_matter(tmp_path: Path, before: dict[str, str]) -> None:
    for name in (".folder", ".file"):
        for end in ("part", "old"):
            (tmp_path / f"{name}.{end}").mkdir()
            (tmp_path / f"{name}.{end}" / "left").write_text("over")
    write_folder(tmp_path)
    assert (tmp_path / "folder" / "a").read_text() == "new a"
    assert not (tmp_path / "folder" / "left").exists()


def test_a_folder_lost_between_two_renames_is_restored(tmp_path: Path, before: dict[str, str]) -> None:
    (tmp_path / "folder").rename(tmp_path / ".folder.old")  # as if the process had been killed there
    with pytest.raises(RuntimeError), atomic_write_folder(tmp_path / "folder"):
        raise RuntimeError
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_link_is_followed_and_the_mode_is_kept(tmp_path: Path, before: dict[str, str]) -> None:
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with atomic_write(tmp_path / "link") as aside:
        aside.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_folder_is_followed_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "best").symlink_to(tmp_path / "disk")
    for text in ("one", "two", "three"):
        with atomic_write_folder(tmp_path / "best") as aside:
            (aside / "file").write_text(text)
        assert (tmp_path / "best").is_symlink()
        assert (tmp_path / "disk" / "file").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"best", "disk"}


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with atomic_write(tmp_path / "pipe") as target:
            target.write_text("through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path: Path, before: dict[str, str]) -> None:
    with pytest.raises(OutputError, match=UNCHANGED), atomic_write(tmp_path / "folder") as aside:
        aside.write_text("new")
    with pytest.raises(OutputError, match="it is a file, not a folder"), atomic_write_folder(tmp_path / "file"):
        pass
    for replaced in (atomic_write, atomic_write_folder):
        with pytest.raises(OutputError, match=UNCHANGED), replaced(tmp_path / "file" / "below"):
            pass
    assert contents(tmp_path) == before


def test_everything_is_flushed_before_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    write_folder(tmp_path)
    written = [path for path in flushed if ".part" in path]
    assert {Path(path).name for path in written} >= {"a", "deep", "c"}
    assert Path(written[0]).parent.name.endswith(".part"), "the folder's own entries"
    assert flushed[-1] == str(tmp_path), "the renames"
    flushed.clear()
    write_file(tmp_path)
    assert [Path(path).parent.parent for path in flushed[:1]] == [tmp_path], "the file's content"
    assert flushed[1:] == [str(tmp_path)], "its rename"


def test_a_leading_link_in_a_circle_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OutputError, match=UNCHANGED), atomic_write(tmp_path / "a" / "file") as aside:
        aside.write_text("new")


@pytest.mark.parametrize("letter", ["a", "ä", "世"])
def test_names_of_the_maximum_length(tmp_path: Path, letter: str) -> None:
    """The name of the staging folder must fit, too, and targets with a common beginning must not be confused."""
    name = letter * (250 // len(letter.encode()))
    with atomic_write(tmp_path / f"{name}.x") as aside:
        aside.write_text("file")
    (tmp_path / f"{name}.x").chmod(0o600)
    with atomic_write_folder(tmp_path / f"{name}.y") as aside, atomic_write_folder(tmp_path / f"{name}.z") as other:
        (aside / "a").write_text("y")
        (other / "a").write_text("z")
    assert contents(tmp_path) == {f"{name}.x": "file", f"{name}.y/a": "y", f"{name}.z/a": "z"}
    with pytest.raises(OutputError, match=UNCHANGED), atomic_write(tmp_path / (name + letter * 20)):
        pass


def test_a_file_size_limit_changes_nothing(tmp_path: Path, before: dict[str, str]) -> None:
    """As on a full disk, the write fails in the middle of the file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OutputError, match=UNCHANGED), atomic_write(tmp_path / "file") as aside:
            aside.write_bytes(bytes(20_000))
        with pytest.raises(OutputError, match=UNCHANGED), atomic_write_folder(tmp_path / "folder") as aside:
            (aside / "a").write_bytes(bytes(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def as_normal_user(action: Callable[[Path], None], folder: Path) -> None:
    """Call ``action`` as a user whom modes bind, unlike root."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    action(folder)


def replace_protected_folder(home: Path) -> None:
    folder = home / "folder"
    for text in ("one", "two", "three"):
        with atomic_write_folder(folder) as aside:
            (aside / "deep").mkdir()
            (aside / "deep" / "a").write_text(text)
            (aside / "deep").chmod(0o555)
        if text == "one":
            folder.chmod(0o555)
        assert contents(home) == {"folder/deep/a": text}
    assert folder.stat().st_mode & 0o777 == 0o555
    assert [path.name for path in home.iterdir()] == ["folder"]
    for path in (folder, folder / "deep"):
        path.chmod(0o755)


def replace_unreadable_file(home: Path) -> None:
    (home / "file").write_text("old")
    (home / "file").chmod(0o200)
    write_file(home)
    assert (home / "file").stat().st_mode & 0o777 == 0o200
    (home / "file").chmod(0o600)
    assert contents(home) == {"file": "new"}
    assert [path.name for path in home.iterdir()] == ["file"]


class TestModes:
    @pytest.fixture(autouse=True)
    def umask(self) -> Iterator[None]:
        previous = os.umask(0o027)
        yield
        os.umask(previous)

    def modes(self, *paths: Path) -> list[int]:
        return [path.stat().st_mode & 0o777 for path in paths]

    def test_new_files_and_folders_have_the_mode_of_the_umask(self, tmp_path: Path) -> None:
        write_file(tmp_path)
        write_folder(tmp_path)
        folder = tmp_path / "folder"
        assert self.modes(tmp_path / "file", folder, folder / "a", folder / "deep") == [0o640, 0o750, 0o640, 0o750]

    def test_what_a_library_creates_for_the_owner_alone_has_the_mode_of_the_umask(self, tmp_path: Path) -> None:
        with atomic_write(tmp_path / "file") as aside:
            os.close(os.open(aside, os.O_CREAT, 0o600))
        assert self.modes(tmp_path / "file") == [0o640]

    def test_private_files_are_for_the_owner_alone(self, tmp_path: Path) -> None:
        (tmp_path / "old").touch(0o644)
        for name in ("old", "new"):
            atomic_write_text(tmp_path / name, "text", private=True)
            assert self.modes(tmp_path / name) == [0o600]

    def test_existing_ones_keep_their_mode(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("old")
        (tmp_path / "folder").mkdir()
        for file, folder in ((0o600, 0o700), (0o444, 0o711), (0o666, 0o777)):
            (tmp_path / "file").chmod(file)
            (tmp_path / "folder").chmod(folder)
            write_file(tmp_path)
            write_folder(tmp_path)
            assert self.modes(tmp_path / "file", tmp_path / "folder") == [file, folder]

    @pytest.mark.parametrize("replace", [replace_protected_folder, replace_unreadable_file])
    def test_a_user_replaces_what_forbids_changes_and_leaves_nothing(self, replace: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory() as name:  # other users cannot enter tmp_path
            Path(name).chmod(0o777)
            process = get_context("fork").Process(target=as_normal_user, args=(replace, Path(name)))
            process.start()
            process.join()
            assert process.exitcode == 0

    def test_an_error_between_the_two_renames_restores_the_mode(
        self, tmp_path: Path, before: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = Path.rename

        def fail_for_the_new_one(self: Path, target: Path) -> Path:
            if self.name == "new":
                disk_full()
            return rename(self, target)

        (tmp_path / "folder").chmod(0o555)
        monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
        with pytest.raises(OutputError, match=UNCHANGED):
            write_folder(tmp_path)
        assert contents(tmp_path) == before
        assert self.modes(tmp_path / "folder") == [0o555]

    def test_nobody_else_can_read_what_is_not_yet_complete(self, tmp_path: Path) -> None:
        """Not even if the file that it replaces is private, and the umask allows everything."""
        (tmp_path / "file").write_text("secret")
        (tmp_path / "file").chmod(0o600)
        os.umask(0)
        with atomic_write(tmp_path / "file") as aside:
            aside.write_text("new secret")
            assert self.modes(aside.parent) == [0o700]
        assert self.modes(tmp_path / "file") == [0o600]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_something_planted_at_the_temporary_name_is_not_used(
    tmp_path: Path, before: dict[str, str], write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a link to a folder of somebody else's, nor one to nothing, a file or a folder."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("new", "old"):
        (victim / name).mkdir()
        (victim / name / "precious").write_text("kept")
    names = iter(["link", "dangling", "file", "folder"])
    mkdir, planted = Path.mkdir, list[Path]()

    def plant_first(self: Path, *args: Any, **options: Any) -> None:
        if self.name.endswith(".part") and (kind := next(names, None)):
            planted.append(self)
            if kind in ("link", "dangling"):
                self.symlink_to(victim if kind == "link" else tmp_path / "nowhere")
            elif kind == "file":
                self.write_text("planted")
            else:
                mkdir(self)
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", plant_first)
    write(tmp_path)
    assert len(planted) == 4
    write(tmp_path)
    assert [path.is_symlink() or path.is_file() for path in planted] == [True, True, True, False]
    assert contents(victim) == {"new/precious": "kept", "old/precious": "kept"}
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "file").read_text() == ("new" if write is write_file else "old")


def test_the_reason_is_reported_if_no_staging_folder_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def vanish(self: Path, *args: Any, **options: Any) -> None:
        if self.name.endswith(".part"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", vanish)
    with pytest.raises(OutputError, match="No such file or directory"):
        write_file(tmp_path)


def write_same_file(path: Path, times: int, letter: str, errors: Any) -> None:
    for _ in range(times):
        try:
            with atomic_write(path) as aside:
                aside.write_text(letter * 50_000)
        except BaseException as error:
            errors.put(repr(error))


def write_same_folder(path: Path, times: int, letter: str, errors: Any) -> None:
    for _ in range(times):
        try:
            with atomic_write_folder(path) as aside:
                for name in "ab":
                    (aside / name).write_text(letter)
        except BaseException as error:
            errors.put(repr(error))


def test_a_writer_cannot_lock_a_folder_that_is_being_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer creates its folder, and another one finds it before the first has locked it."""
    created = tmp_path / f".file.{storage._machine()}-00000000.part"
    created.mkdir()
    remove_tree = storage._remove_tree

    def remove_while_it_is_locked(folder: Path) -> None:
        with pytest.raises(FileNotFoundError):
            storage._lock(created)
        remove_tree(folder)

    monkeypatch.setattr(storage, "_remove_tree", remove_while_it_is_locked)
    storage._remove_if_abandoned(created, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


WRITERS = {
    "threads": (threading.Thread, queue.SimpleQueue),
    "processes": (get_context("fork").Process, get_context("fork").SimpleQueue),
}


@pytest.mark.parametrize("kind", WRITERS)
class TestWritersOfTheSamePath:
    def write(self, kind: str, target: Callable[..., None], path: Path, times: int) -> list[Any]:
        """Start three writers of ``path``, check that none had an error, and return them."""
        start, make_queue = WRITERS[kind]
        errors = make_queue()
        writers = [start(target=target, args=(path, times, letter, errors)) for letter in "xyz"]
        for writer in writers:
            writer.start()
        return [*writers, errors]

    def test_a_reader_always_sees_a_whole_file(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "file"
        path.write_text("o" * 50_000)
        *writers, errors = self.write(kind, write_same_file, path, 30)
        while any(writer.is_alive() for writer in writers):
            text = path.read_text()
            assert len(text) == 50_000
            assert len(set(text)) == 1
        for writer in writers:
            writer.join()
        assert errors.empty(), errors.get()
        assert [each.name for each in tmp_path.iterdir()] == ["file"]

    def test_the_last_folder_wins_and_none_is_mixed(self, tmp_path: Path, kind: str) -> None:
        *writers, errors = self.write(kind, write_same_folder, tmp_path / "folder", 25)
        for writer in writers:
            writer.join()
        assert errors.empty(), errors.get()
        assert contents(tmp_path) in [{"folder/a": letter, "folder/b": letter} for letter in "xyz"]
        assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_the_last_writer_to_finish_wins(tmp_path: Path, before: dict[str, str], write: Callable[..., None]) -> None:
    """One writer may even begin and end while another one of the same thread is writing."""
    target = tmp_path / ("file" if write is write_file else "folder")
    with (atomic_write if write is write_file else atomic_write_folder)(target) as aside:
        write(tmp_path)
        if write is write_file:
            aside.write_text("newest")
        else:
            (aside / "d").write_text("newest")
    expected = {"file": "newest"} if write is write_file else {"folder/d": "newest"}
    untouched = {name: text for name, text in before.items() if not name.startswith(target.name)}
    assert contents(tmp_path) == {**untouched, **expected}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_appears_between_the_two_renames_is_replaced(
    tmp_path: Path, before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer may be that fast, or may have restored the old folder because this one seemed dead."""
    rename, target, others = Path.rename, tmp_path / "folder", iter("xyz")

    def rename_after_another(self: Path, new_name: Path) -> Path:
        if new_name == target and (other := next(others, None)):
            target.mkdir()
            (target / other).write_text(other)
        return rename(self, new_name)

    monkeypatch.setattr(Path, "rename", rename_after_another)
    write_folder(tmp_path)
    assert contents(tmp_path) == {"file": "old", "folder/a": "new a", "folder/deep/c": "new c"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def staging_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*.part"))


@contextmanager
def writer_in_another_process(
    path: Path, function: str = "atomic_write", between_renames: bool = False
) -> Iterator[Any]:
    """Start a process that writes ``path`` until it is killed, at the latest at the end."""
    stop = "print('writing', flush=True); time.sleep(60)"
    code = (
        f"import sys, time\nfrom pathlib import Path\nfrom headway.storage import {function} as write\n"
        f"rename = Path.rename\ndef stop(self, target):\n    if target == Path(sys.argv[1]):\n        {stop}\n"
        f"    return rename(self, target)\n{'Path.rename = stop' if between_renames else ''}\n"
        f"with write(Path(sys.argv[1])) as aside:\n    {'pass' if between_renames else stop}"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_only_what_a_killed_writer_has_left_is_removed(
    tmp_path: Path, before: dict[str, str], write: Callable[..., None]
) -> None:
    """The other target's remains stay: its own next writer may have something to restore."""
    target = tmp_path / ("file" if write is write_file else "folder")
    with writer_in_another_process(target, "atomic_write" if write is write_file else "atomic_write_folder") as writer:
        left = staging_folders(tmp_path)
        assert len(left) == 1
        write(tmp_path)
        assert staging_folders(tmp_path) == left, "its writer is alive"
        writer.kill()
        writer.wait()
        with atomic_write(tmp_path / f"{target.name}.x") as aside:
            aside.write_text("another target")
        assert staging_folders(tmp_path) == left
        write(tmp_path)
    assert not staging_folders(tmp_path)


def test_a_writer_killed_between_two_renames_does_not_lose_the_folder(tmp_path: Path, before: dict[str, str]) -> None:
    with writer_in_another_process(tmp_path / "folder", "atomic_write_folder", between_renames=True) as writer:
        assert not (tmp_path / "folder").exists()
        with pytest.raises(RuntimeError), atomic_write_folder(tmp_path / "folder"):
            raise RuntimeError
        assert not (tmp_path / "folder").exists(), "its writer is alive"
        writer.kill()
        writer.wait()
        with lock_run_folder(tmp_path):
            assert staging_folders(tmp_path), "it contains the only copy of a folder"
        with pytest.raises(RuntimeError), atomic_write_folder(tmp_path / "folder"):
            raise RuntimeError
    assert {name: text for name, text in contents(tmp_path).items() if "lock" not in name} == before
    assert not staging_folders(tmp_path)


@pytest.mark.parametrize("locks", ["none", "of one machine"])
def test_where_locks_say_nothing_a_staging_folder_without_changes_is_removed_after_a_week(
    tmp_path: Path, before: dict[str, str], locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may have no locks, or a writer on another machine may hold one that is not known here."""
    with atomic_write_folder(tmp_path / "folder") as aside:
        (aside / "a").write_text("mine")
        (staging,) = staging_folders(tmp_path)
        other = tmp_path / (staging.name if locks == "none" else ".folder.00000000-00000000.part")
        if other != staging:
            shutil.copytree(staging, other)
        else:
            monkeypatch.setattr(fcntl, "flock", no_locks)
        write_folder(tmp_path)
        assert other.exists()
        week = 7 * 24 * 3600
        for age, path in ((week + 60, other), (week + 60, other / "new"), (week - 60, other / "new" / "a")):
            os.utime(path, (time.time() - age,) * 2)
        os.utime(other / "lock", (0, 0))
        os.utime(other, (0, 0))
        write_folder(tmp_path)
        assert other.exists(), "one file has changed within a week"
    assert (tmp_path / "folder" / "a").read_text() == "mine"
    if locks != "none":
        for path in (other / "new" / "a", other / "new", other):
            os.utime(path, (0, 0))
        write_folder(tmp_path)
    assert not staging_folders(tmp_path)


class TestLockedFolder:
    def test_a_second_process_learns_who_holds_the_lock(self, tmp_path: Path) -> None:
        message = rf"run: process {os.getpid()} is training in this folder; wait for it, stop it .* another --run"
        with lock_run_folder(tmp_path / "run"):
            with pytest.raises(CheckpointError, match=message), lock_run_folder(tmp_path / "run"):
                raise AssertionError("two at once")
            with lock_run_folder(tmp_path / "other"):
                pass
        with lock_run_folder(tmp_path / "run"):
            pass

    def test_the_lock_of_a_killed_process_is_released(self, tmp_path: Path) -> None:
        code = (
            "import pathlib, sys, time\nfrom headway.storage import lock_run_folder\n"
            "with lock_run_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(CheckpointError, match=f"process {holder.pid} is training"), lock_run_folder(tmp_path):
                pass
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        with lock_run_folder(tmp_path):
            assert (tmp_path / "lock.pid").read_text() == f"{os.getpid()}\n"

    def test_temporary_files_of_a_killed_holder_are_removed(self, tmp_path: Path) -> None:
        for name in (".metrics.jsonl.7.part", "metrics.jsonl", ".hidden"):
            (tmp_path / name).write_text("")
        (tmp_path / ".average.part").mkdir()  # another command may be using it
        with writer_in_another_process(tmp_path / "recipe.toml"):
            pass
        with writer_in_another_process(tmp_path / "best", "atomic_write_folder"), lock_run_folder(tmp_path):
            (alive,) = tmp_path.glob(".best.*.part")
            assert {path.name for path in tmp_path.iterdir()} == {
                ".hidden",
                "metrics.jsonl",
                ".average.part",
                alive.name,
                "lock",
                "lock.pid",
            }

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
    def test_without_locks_there_is_a_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", no_locks)
        expected = pytest.warns(
            UserWarning, match=r"does not support locks \(.* (available|implemented)\); train one run at a time"
        )
        with expected, lock_run_folder(tmp_path):
            pass

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="lock: cannot be written"), lock_run_folder(tmp_path / "file"):
            pass


class TestLock:
    def test_processes_hold_the_lock_in_turn(self, tmp_path: Path) -> None:
        """Another process gets the lock only after its holder has released it or died."""
        path, out = tmp_path / "new" / "lock", tmp_path / "out"
        code = (
            "import sys; from pathlib import Path; from headway.storage import lock_file\n"
            "with lock_file(Path(sys.argv[1])):\n    print('mine', flush=True)\n    sys.stdin.read()"
        )
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"mine\n"
            waiting = threading.Thread(target=lambda: _write_under(path, out))
            waiting.start()
            waiting.join(0.3)
            assert not out.exists()
            other.kill()
            waiting.join(30)
        assert out.read_text() == "done"

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
    def test_without_locks_there_is_a_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with pytest.warns(UserWarning, match="does not support locks"), lock_file(tmp_path / "lock"):
            pass

    def test_a_lock_that_cannot_be_created_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot be written"), lock_file(tmp_path / "file" / "lock"):
            pass


def _write_under(lock: Path, path: Path) -> None:
    with lock_file(lock):
        path.write_text("done")


def test_locks_are_not_written_through_links(tmp_path: Path) -> None:
    """Whoever can create names in a run folder must not choose which files of its user are changed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("text")
    (tmp_path / "run" / "lock.pid").symlink_to(tmp_path / "precious")
    with lock_run_folder(tmp_path / "run"):
        assert (tmp_path / "run" / "lock.pid").read_text() == f"{os.getpid()}\n"
    assert (tmp_path / "precious").read_text() == "text"
    (tmp_path / "run" / "lock").unlink()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "new")
    with pytest.raises(OutputError, match="cannot be written"), lock_run_folder(tmp_path / "run"):
        pass
    assert not (tmp_path / "new").exists()
