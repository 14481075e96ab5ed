"""Stores are built in chunks: by several processes, after any interruption, always with the same result."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from headway.data import store_builder
from headway.data.encoding import EncodingSpec, SideSpec, load_chunk, save_chunk
from headway.data.store import Chunk, FilterConfig, TokenStore
from headway.data.store_builder import Shard, open_or_build_store
from headway.errors import ConfigError, DataError, OutputError
from headway.text.base import EOS
from headway.text.bpe_dropout import BPEDropoutEncoder
from headway.text.corpus_encoder import CorpusEncoder
from headway.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS: list[tuple[str, ...]] = [
    (f"eins zwei {number}", f"one two {number} three" if number % 7 else "") for number in range(45)
]
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train((text for pair in TEXTS for text in pair), TokenizerConfig(vocab_size=300))


@pytest.fixture
def work(tokenizer: Tokenizer) -> EncodingSpec:
    side = SideSpec(CorpusEncoder(tokenizer), BPEDropoutEncoder(tokenizer, 0.3, 2, 1), suffix_ids=(EOS,))
    return EncodingSpec((side, side), FilterConfig())


@pytest.fixture(autouse=True)
def _five_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_builder, "_CHUNK_EXAMPLES", 10)


def on_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(store_builder, "num_cores", lambda: cores)


def texts() -> Iterator[tuple[str, ...]]:
    yield from TEXTS


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def expected(tmp_path: Path, work: EncodingSpec, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the files of the store, built by this process in one chunk."""
    with monkeypatch.context() as patch:
        patch.setattr(store_builder, "_CHUNK_EXAMPLES", 1000)
        store = open_or_build_store(tmp_path / "expected", KEY, texts, work)
    assert store is not None
    assert (len(store), store.filter_counts.read, store.filter_counts.empty) == (38, 45, 7)
    return content(tmp_path / "expected")


def test_workers_build_the_same_store_bit_for_bit(
    tmp_path: Path, work: EncodingSpec, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Path] = []

    class Pool(ProcessPoolExecutor):
        def submit(self, function: Any, /, path: Path, *arguments: Any) -> Any:  # type: ignore[override]
            submitted.append(path)
            return super().submit(function, path, *arguments)

    monkeypatch.setattr(store_builder, "ProcessPoolExecutor", Pool)
    on_cores(monkeypatch, 2)
    heard: list[int] = []
    assert isinstance(open_or_build_store(tmp_path / "s", KEY, texts, work, progress=heard.append), TokenStore)
    assert len(submitted) == 5
    assert content(tmp_path / "s") == expected
    assert heard[-1] == 45
    assert all(later > earlier for earlier, later in pairwise(heard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "expected.lock", "s", "s.lock"]


def test_workers_load_no_torch() -> None:
    code = "import headway.data.store_builder, headway.text.bpe_dropout, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("cores", [1, 2])
def test_finished_work_is_not_repeated(
    tmp_path: Path, work: EncodingSpec, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    on_cores(monkeypatch, cores)

    def breaking() -> Iterator[tuple[str, ...]]:
        yield from TEXTS[:25]
        raise DataError("line 26 is bad")

    with pytest.raises(DataError, match="line 26 is bad"):
        open_or_build_store(tmp_path / "s", KEY, breaking, work)
    done = sorted(tmp_path.glob("s.pieces-*/*.npz"))
    assert len(done) == 2 if cores == 1 else len(done) <= 2
    for path in done:
        os.utime(path, ns=(5, 5))
    kept = dict.fromkeys(done, 5)
    seen: dict[Path, int] = {}

    def load(path: Path) -> Chunk:
        seen[path] = path.stat().st_mtime_ns
        return load_chunk(path)

    monkeypatch.setattr("headway.data.store_builder.load_chunk", load)
    open_or_build_store(tmp_path / "s", KEY, texts, work)
    assert len(seen) == 5
    assert seen | kept == seen
    assert content(tmp_path / "s") == expected


class _Planted:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_no_pickle_in_the_run_folder_is_read(
    tmp_path: Path, work: EncodingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cores(monkeypatch, 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    home = tmp_path / f"store.pieces-{KEY}-10"
    home.mkdir()
    (home / "spec.pickle").write_bytes(pickle.dumps(_Planted(tmp_path / "planted")))
    assert open_or_build_store(tmp_path / "store", KEY, texts, work) is not None
    assert not (tmp_path / "planted").exists()
    assert not list((tmp_path / "temporary").iterdir())


def test_pieces_of_another_key_are_not_used_and_go(
    tmp_path: Path, work: EncodingSpec, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cores(monkeypatch, 1)
    assert open_or_build_store(tmp_path / "s", "another key", lambda: iter(TEXTS[:20]), work, shard=Shard(1, 2)) is None
    assert len(list(tmp_path.glob("s.pieces-*/*.npz"))) == 1
    open_or_build_store(tmp_path / "s", KEY, texts, work)
    assert content(tmp_path / "s") == expected
    assert list(tmp_path.glob("s.pieces-*")) == []


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_shards_in_any_order_make_the_same_store(
    tmp_path: Path,
    work: EncodingSpec,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, ...],
) -> None:
    on_cores(monkeypatch, 1)
    *early, last = order
    for number in early:
        assert open_or_build_store(tmp_path / "s", KEY, texts, work, shard=Shard(number, 3)) is None
    assert open_or_build_store(tmp_path / "s", KEY, texts, work, shard=Shard(last, 3)) is not None
    assert content(tmp_path / "s") == expected
    again = open_or_build_store(tmp_path / "s", KEY, texts, work, shard=Shard(early[0], 3))
    assert again is not None
    assert again.fingerprint == KEY


def test_shards_at_the_same_time(
    tmp_path: Path, work: EncodingSpec, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cores(monkeypatch, 1)
    threads = [
        threading.Thread(
            target=open_or_build_store, args=(tmp_path / "s", KEY, texts, work), kwargs={"shard": Shard(n, 2)}
        )
        for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_or_build_store(tmp_path / "s", KEY, texts, work) is not None
    assert content(tmp_path / "s") == expected


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/2/3", "-1/2", "1/", "²/3"])
def test_bad_shards_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--shard '.*': expected I/N with 1 <= I <= N, for example 2/4"):
        Shard.parse(text)
    assert Shard.parse("2/4") == Shard(2, 4)


def test_a_damaged_chunk_is_reported_and_built_again(
    tmp_path: Path, work: EncodingSpec, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cores(monkeypatch, 1)
    open_or_build_store(tmp_path / "s", KEY, texts, work, shard=Shard(1, 2))
    piece = min(tmp_path.glob("s.pieces-*/*.npz"))
    piece.write_bytes(piece.read_bytes()[:100])
    with pytest.raises(
        OutputError, match=r"000000\.npz: the file was damaged and has been removed; run the same command again"
    ):
        open_or_build_store(tmp_path / "s", KEY, texts, work)
    open_or_build_store(tmp_path / "s", KEY, texts, work)
    assert content(tmp_path / "s") == expected


def test_a_piece_comes_back(tmp_path: Path, work: EncodingSpec) -> None:
    piece = work.encode_chunk(TEXTS[:9])
    save_chunk(piece, tmp_path / "new" / "piece.npz")
    loaded = load_chunk(tmp_path / "new" / "piece.npz")
    assert loaded.filter_counts == piece.filter_counts
    for side in ("source", "target"):
        assert loaded.tokens[side].tolist() == piece.tokens[side].tolist()
        assert loaded.lengths[side].tolist() == piece.lengths[side].tolist()


class TestWorkers:
    @pytest.fixture(autouse=True)
    def _two_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        on_cores(monkeypatch, 2)

    def test_an_error_in_a_worker_is_raised_here(self, tmp_path: Path, work: EncodingSpec) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot be written"):
            open_or_build_store(tmp_path / "file" / "s", KEY, texts, work)

    def test_a_worker_that_is_killed_is_reported(self, tmp_path: Path, work: EncodingSpec) -> None:
        others = active_children()

        def killing() -> Iterator[tuple[str, ...]]:
            yield from TEXTS[:25]  # both workers have started: a pool that breaks while it starts one may never end
            worker, _ = (process for process in active_children() if process not in others)
            worker.kill()
            yield from TEXTS[25:]

        with pytest.raises(OutputError, match=r"ended unexpectedly: it was killed, .*completed chunks are kept"):
            open_or_build_store(tmp_path / "s", KEY, killing, work)

    def test_none_is_left_after_an_error(self, tmp_path: Path, work: EncodingSpec) -> None:
        others = active_children()
        processes: list[BaseProcess] = []

        def failing() -> Iterator[tuple[str, ...]]:
            yield from TEXTS[:25]
            processes.extend(process for process in active_children() if process not in others)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            open_or_build_store(tmp_path / "s", KEY, failing, work)
        assert processes
        assert not any(process.is_alive() for process in processes)

    def test_workers_end_when_their_parent_is_killed(self, tmp_path: Path) -> None:
        """A killed parent cannot shut its pool down, so each worker watches the parent."""
        script = tmp_path / "parent.py"
        script.write_text(
            "import time\n"
            "from multiprocessing import active_children\n"
            "from pathlib import Path\n"
            "from headway.data import store_builder\n"
            "from headway.data.encoding import EncodingSpec, SideSpec\n"
            "from headway.data.labels import LabelEncoder\n"
            "def examples():\n"
            "    yield 'a', 'a'\n"
            "    yield 'a', 'a'\n"
            "    print(*(each.pid for each in active_children()), flush=True)\n"
            "    time.sleep(600)\n"
            "if __name__ == '__main__':\n"
            "    store_builder._CHUNK_EXAMPLES, store_builder.num_cores = 1, lambda: 2\n"
            "    side = SideSpec(LabelEncoder(('a',)))\n"
            "    store_builder.open_or_build_store(Path('s'), 'key', examples, EncodingSpec((side, side), None))\n"
        )
        parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert parent.stdout is not None
        worker = int(parent.stdout.readline().split()[0])
        parent.kill()
        parent.wait()
        parent.stdout.close()
        end = time.monotonic() + 60
        while _is_running(worker):
            assert time.monotonic() < end
            time.sleep(0.05)


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # ended, but its exit status has not been read


_UNGUARDED = """
import sys
from pathlib import Path
from random import Random
from headway.data import store_builder
from headway.data.encoding import EncodingSpec, SideSpec
from headway.data.store import FilterConfig
from headway.text.corpus_encoder import CorpusEncoder
from headway.text.tokenizer import Tokenizer, TokenizerConfig

letters = Random(0)
words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(20_000)]
tokenizer = Tokenizer.train(iter(words), TokenizerConfig(vocab_size=8000))
store_builder._CHUNK_EXAMPLES, store_builder.num_cores = 10, lambda: 2
spec = EncodingSpec((SideSpec(CorpusEncoder(tokenizer)),), FilterConfig())
store_builder.open_or_build_store(Path(sys.argv[1]), "0123456789abcdef", lambda: ((word,) for word in words), spec)
"""


@pytest.mark.slow
def test_a_script_that_its_own_processes_run_again_ends_with_an_error(tmp_path: Path) -> None:
    """Each process that is started fails at once, without reading its arguments, which must therefore fit a pipe."""
    script = tmp_path / "train.py"
    script.write_text(_UNGUARDED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "s")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert "has no 'if __name__ == \"__main__\":'" in done.stderr
