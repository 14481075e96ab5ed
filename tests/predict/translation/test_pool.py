"""A pool of processes returns the same translations as one translator, and reports processes that fail."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.decode import DecodingOptions, Sampling
from headway.errors import BundleError, ConfigError, HeadwayError, MissingPackageError
from headway.predict import Glossary, Source, TranslateOptions, Translator, TranslatorPool, load_translator
from headway.predict.translation.pool import _shares

Make = Callable[..., Translator]
SOURCES = [
    "ein Haus",
    "das",
    "",
    "das rote Haus und der grüne Baum",
    "Baum",
    "der Baum und das Haus",
    "rot",
    "ein Haus",
]


def noisy(folder: Path) -> Translator:
    """Load a translator, and print something."""
    print("loading", flush=True)
    os.system("echo loading")
    return load_translator(folder)


def broken() -> Translator:
    raise ZeroDivisionError("of nothing")


class OddError(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def odd() -> Translator:
    raise OddError("this", "that")


def endless() -> Translator:
    time.sleep(600)
    raise AssertionError


@pytest.fixture(scope="module")
def folder(make_translator: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    make_translator("bpe", positions="learned", max_length=12).bundle.save(folder, "# Card")
    return folder


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[TranslatorPool]:
    with TranslatorPool(partial(noisy, folder), workers=2) as pool:
        yield pool


@pytest.mark.parametrize(
    "options",
    [DecodingOptions(), DecodingOptions(beam_size=1), DecodingOptions(sampling=Sampling(seed=5), max_length=6)],
    ids=["beam", "greedy", "sample"],
)
def test_as_one_translator(pool: TranslatorPool, folder: Path, options: DecodingOptions) -> None:
    sources: list[str | Source] = [
        *SOURCES,
        "x" * 20,
        Source("das rote", prefix="ein"),
        Source("Baum", banned=("Haus",)),
    ]
    alone = load_translator(folder)
    aligned = TranslateOptions(decoding=options, alignment=True)
    expected = alone.translate_each(sources, aligned)
    found = pool.translate_each(sources, aligned)
    assert len({str(each) for each in found}) > 5
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, HeadwayError) or isinstance(ours, HeadwayError):
            assert (type(ours), str(ours)) == (type(theirs), str(theirs))
            continue
        assert (ours.source, ours.text, ours.tokens) == (theirs.source, theirs.text, theirs.tokens)
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        if ours.text:
            assert pool.word_alignment(ours.candidates[0]) == alone.word_alignment(theirs.candidates[0])


def test_a_glossary_reaches_every_process(pool: TranslatorPool, folder: Path) -> None:
    glossary = Glossary([("Haus", "Baum"), ("das", "der|ein")])
    found = pool.translate(SOURCES, glossary=glossary)
    assert [each.glossary for each in found] == [
        each.glossary for each in load_translator(folder).translate(SOURCES, glossary=glossary)
    ]
    assert any(each.glossary for each in found)


def test_one_text_and_a_stream(pool: TranslatorPool, folder: Path) -> None:
    expected = [each.text for each in load_translator(folder).translate(SOURCES)]
    assert pool.translate(SOURCES[0]).text == expected[0]
    assert [each.text for each in pool.translate_lines(iter(SOURCES))] == expected
    assert pool.translate([]) == []


def test_an_error_of_one_call_ends_no_process(pool: TranslatorPool) -> None:
    with pytest.raises(ConfigError, match="language"):
        pool.translate(SOURCES, target_language="fr")
    with pytest.raises(HeadwayError, match=r"^text 2: "):
        pool.translate(["das", "x" + "\u0301" * 200])  # one character with too many marks
    assert pool.translate("das").source == "das"


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers(folder: Path, workers: int) -> None:
    with pytest.raises(ConfigError, match=rf"workers = {workers}: expected 1 or more"):
        TranslatorPool(partial(load_translator, folder), workers)


def test_a_function_that_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot send .*functools\.partial\(load_translator, FOLDER\)"):
        TranslatorPool(lambda: load_translator(str(lock)), 1)


@pytest.mark.slow
def test_what_loading_raises_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nothing"):
        TranslatorPool(partial(load_translator, tmp_path / "nothing"), 1)
    with pytest.raises(ZeroDivisionError, match="of nothing") as raised:
        TranslatorPool(broken, 1)
    assert "in broken" in str(raised.value.__cause__)  # the traceback of that process
    with pytest.raises(RuntimeError, match=r"(?s)in odd.*this and that"):
        TranslatorPool(odd, 1)


def processes(pool: TranslatorPool) -> list[int]:
    return list(pool._executor._processes)


@pytest.mark.slow
def test_a_killed_process_is_reported(folder: Path) -> None:
    with TranslatorPool(partial(load_translator, folder), workers=1) as pool:
        os.kill(processes(pool)[0], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(HeadwayError, match=r"ended unexpectedly .*SIGKILL.* try fewer workers"):
                pool.translate("das")


@pytest.mark.slow
def test_functions_of_a_script_work_without_a_main_guard(folder: Path) -> None:
    code = (
        "from headway.predict import TranslatorPool, load_translator\n"
        f"def load(): return load_translator({str(folder)!r})\n"
        "with TranslatorPool(load, 1) as pool:\n    print(pool.translate('das').source)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "das\n"


@pytest.mark.slow
def test_a_closed_pool_and_an_interrupted_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = TranslatorPool(partial(load_translator, folder), 1)
    (process,) = processes(pool)
    assert is_running(process)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.translate(SOURCES)
    assert not is_running(process)
    with pytest.raises(HeadwayError, match="this pool of translators is closed"):
        pool.translate("das")


def interrupted(future: Future[object]) -> object:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it() -> None:
    code = "import test_pool; from headway.predict import TranslatorPool; TranslatorPool(test_pool.endless, 1)"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}) as starter:
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children")
        deadline = time.monotonic() + 120
        while len(found := children.read_text(encoding="utf-8").split()) < 2:  # the worker and loky's resource tracker
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(5)  # until the worker is in the function that does not return
        assert all(is_running(int(child)) for child in found)
        starter.kill()
    deadline = time.monotonic() + 30
    while any(is_running(int(child)) for child in found):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie process has ended


def test_errors_with_arguments_of_their_own_are_handed_over() -> None:
    error = pickle.loads(pickle.dumps(MissingPackageError("drawing", "matplotlib")))
    assert isinstance(error, MissingPackageError)
    assert "drawing needs the package 'matplotlib'" in str(error)


@given(st.lists(st.integers(0, 20_000), max_size=80), st.integers(1, 5))
def test_shares_contain_each_text_once_and_similar_lengths(sizes: list[int], workers: int) -> None:
    shares = _shares(sizes, workers)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    assert len(shares) == min(workers, len(sizes))
    assert all(sum(sizes[index] for index in share) <= sum(sizes) / workers + 20_000 for share in shares)
    assert max(map(len, shares), default=0) - min(map(len, shares), default=0) <= 1
