import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.errors import CheckpointError, OutputError
from headway.storage import atomic_write, atomic_write_folder, lock_file, lock_run_folder

UNCHANGED = "cannot be written .*; its previous content is unchanged"


def contents(folder: Path) -> dict[str, str]:
    """Return every file below ``folder``, including hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


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
    rename = Path.rename

    def stop_at_the_second(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
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
    assert any(path.endswith(".part") for path in written), "the folder's own entries"


class TestLockedFolder:
    def test_a_second_process_learns_who_holds_the_lock(self, tmp_path: Path) -> None:
        message = rf"run: process {os.getpid()} is training there; wait for it, stop it .* another --run"
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
        with lock_run_folder(tmp_path):
            assert {path.name for path in tmp_path.iterdir()} == {
                ".hidden",
                "metrics.jsonl",
                ".average.part",
                "lock",
                "lock.pid",
            }

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
    def test_without_locks_there_is_a_warning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", no_locks)
        expected = pytest.warns(
            UserWarning, match=r"has no locks \(.* (available|implemented)\); train one run at a time"
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
        with pytest.warns(UserWarning, match="has no locks"), lock_file(tmp_path / "lock"):
            pass

    def test_a_lock_that_cannot_be_created_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot be written"), lock_file(tmp_path / "file" / "lock"):
            pass


def _write_under(lock: Path, path: Path) -> None:
    with lock_file(lock):
        path.write_text("done")
