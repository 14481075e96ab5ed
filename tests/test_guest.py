"""A library call leaves the process of its host as it was: settings, random numbers, signals and the allocator."""

from __future__ import annotations

import gc
import locale
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import headway
from headway import hardware, kernels
from headway.cli.commands.distill import distill
from headway.cli.commands.experiment import experiment
from headway.cli.commands.quickstart import quickstart
from headway.cli.commands.train import train as train_command
from headway.decode import DecodingOptions, Sampling
from headway.evaluation import bleu, chrf, evaluate, paired_bootstrap
from headway.inspection.inspect_text import inspect
from headway.predict import occlude
from headway.tasks import parse_recipe, train
from headway.training import loop
from headway.training.host_state import preserve_host_state
from headway.training.loop import Result

WORDS = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=3 + seed % 9)) for seed in range(40)]


def state_of_process() -> dict[str, Any]:
    """Return what a process has only once, or each of its threads, and a library might change."""
    return {
        "threads of PyTorch": torch.get_num_threads(),
        "threads of a new thread": threads_of_a_new_thread(),
        "threads between operations": torch.get_num_interop_threads(),
        "random numbers of PyTorch": torch.random.get_rng_state().tolist(),
        "random numbers of NumPy": str(np.random.get_state()),
        # Not those of Python's module random, from which the type checks of the tests draw.
        "default type": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision of products": torch.get_float32_matmul_precision(),
        "attention on a GPU": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "oneDNN": torch.backends.mkldnn.enabled,
        "denormals": torch.tensor(1e-40).mul(1).item(),
        "errors of NumPy": np.geterr(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "environment": dict(os.environ),
        "filters of warnings": list(warnings.filters),
        "how warnings are shown": warnings.showwarning,
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "folder": Path.cwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "path": list(sys.path),
        "garbage collector": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0),
        "time slices": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(),
    }


def threads_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


class _Libc:
    """A C library that must not be called."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"a library call calls {name}, which changes the whole process")


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two threads, whose allocator and default number of threads are its own."""
    monkeypatch.setattr(hardware, "_keeps_freed_memory", False)
    monkeypatch.setattr(hardware, "_glibc", _Libc)
    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the default of new threads is changed"))


def unchanged(call: Callable[[], object]) -> None:
    before = state_of_process()
    call()
    after = state_of_process()
    changed = [name for name, value in after.items() if value != before[name]]
    assert {name: (before[name], after[name]) for name in changed} == {}, changed


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param("int8", marks=pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")),
    ],
)
def test_translation(make_translator: Callable[..., Any], tmp_path: Path, precision: str) -> None:
    make_translator(decoder_layers=2).bundle.save(tmp_path / "model", "# A model\n")
    model = headway.load(tmp_path / "model", device="cpu", precision=precision)
    sampled = DecodingOptions(sampling=Sampling(seed=3), max_length=8)
    for call in (
        lambda: headway.load(tmp_path / "model", device="cpu", precision=precision),
        lambda: model.translate(TEXTS, DecodingOptions(max_length=8)),
        lambda: model.translate(TEXTS[:3], sampled, alignment=True),
        lambda: model.score(TEXTS, TEXTS),
        lambda: model.alternatives(TEXTS[0]),
        lambda: model.search_tree(TEXTS[0], DecodingOptions(max_length=8)),
        lambda: inspect(model, TEXTS[0], None, name="a model"),
    ):
        unchanged(call)


def test_many_texts_trim_no_heap(make_translator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.predict.translation.find_candidates._MANY", 3)
    found = make_translator().translate(TEXTS[:5], DecodingOptions(max_length=4))
    assert len(found) == 5


def test_classification(make_classifier: Callable[..., Any], tmp_path: Path) -> None:
    make_classifier(pooling="attention").bundle.save(tmp_path / "model", "# A model\n")
    model = headway.load(tmp_path / "model", device="cpu")
    for call in (
        lambda: headway.load(tmp_path / "model", device="cpu"),
        lambda: model.classify(TEXTS),
        lambda: model.explain(TEXTS[0]),
        lambda: occlude(model, TEXTS[0]),
        lambda: inspect(model, TEXTS[0], None, name="a model"),
    ):
        unchanged(call)


@pytest.mark.slow
def test_language_models(
    make_language_model: Callable[..., Any], make_masked_language_model: Callable[..., Any], tmp_path: Path
) -> None:
    make_language_model().bundle.save(tmp_path / "model", "# A model\n")
    model, masked = headway.load(tmp_path / "model", device="cpu", precision="float32"), make_masked_language_model()
    for call in (
        lambda: headway.load(tmp_path / "model", device="cpu"),
        lambda: model.generate(TEXTS[:2], max_new_tokens=4, n=2),
        lambda: list(model.stream("das", max_new_tokens=4)),
        lambda: model.perplexity(TEXTS),
        lambda: model.score(TEXTS),
        lambda: masked.fill("[MASK] Haus"),
        lambda: masked.score(TEXTS[:4]),
        lambda: inspect(model, "das", None, name="a model", max_new_tokens=2),
        lambda: inspect(masked, "das [MASK]", None, name="a model"),
    ):
        unchanged(call)


def test_evaluation() -> None:
    for call in (
        lambda: bleu(TEXTS, TEXTS),
        lambda: chrf(TEXTS, TEXTS),
        lambda: evaluate(TEXTS, TEXTS, metrics=("bleu", "ter")),
        lambda: paired_bootstrap(TEXTS, TEXTS[::-1], TEXTS),
    ):
        unchanged(call)


@pytest.mark.slow
def test_training_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The first run imports PyTorch's compiler, which sets a variable."""
    (tmp_path / "text.txt").write_text("".join(text + "\n" for text in TEXTS))
    recipe = parse_recipe(
        {
            "task": {"kind": "language_model"},
            "data": {"folder": str(tmp_path), "train": [{"files": ["text.txt"]}], "max_tokens": 64},
            "tokenizer": {"kind": "characters"},
            "model": {"d_model": 8, "num_heads": 2, "d_ff": 8, "decoder_layers": 1, "max_length": 16},
            "training": {"steps": 1, "device": "cpu"},
            "checkpoints": {"average": 0},
        },
        "test",
    )
    train(recipe, tmp_path / "first")
    unchanged(lambda: train(recipe, tmp_path / "second"))


@pytest.mark.parametrize("fails", [False, True])
def test_a_training_call_restores_what_its_parts_change(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's compiler sets a variable when it is imported, and other packages may draw or filter."""

    class FailedError(Exception):
        pass

    def change_everything(*_: object, **__: object) -> Result:
        np.random.seed(3)
        torch.manual_seed(5)
        warnings.simplefilter("ignore")
        os.environ["HEADWAY_TEST_NEW"], os.environ["HEADWAY_TEST_OLD"] = "1", "2"
        if fails:
            raise FailedError
        return Result(1, True, None, {})

    def call() -> None:
        with suppress(FailedError):
            headway.train(train=[("a", "b")], run=tmp_path / "run")

    monkeypatch.setenv("HEADWAY_TEST_OLD", "1")
    monkeypatch.setattr(loop, "train", change_everything)
    unchanged(call)


def test_random_numbers_of_python_are_restored() -> None:
    """Checked inside one function, because the type checks of the tests draw, too."""
    state = random.getstate()
    with preserve_host_state():
        random.random()
    assert random.getstate() == state


def test_training_on_a_gpu_restores_how_attention_is_computed() -> None:
    def inside() -> None:
        with hardware.cudnn_attention_disabled():
            assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]

    unchanged(inside)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(lambda: train_command(Path("recipe.toml")), id="train"),
        pytest.param(lambda: quickstart(), id="quickstart"),
        pytest.param(lambda: quickstart(language_model=True), id="quickstart --language-model"),
        pytest.param(lambda: distill(Path("model"), Path("recipe.toml")), id="distill"),
        pytest.param(lambda: experiment("all", Path("output"), quick=True), id="experiment"),
    ],
)
def test_commands_that_train_keep_freed_memory(
    command: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KeptError(Exception):
        pass

    def keep() -> None:
        raise KeptError

    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text('data.train = [{ files = ["a", "b"] }]\n', encoding="utf-8")
    monkeypatch.setattr(hardware, "keep_freed_memory", keep)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")  # which the commands would set for the whole test process
    with pytest.raises(KeptError):
        command()


def test_the_command_keeps_freed_memory_and_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Libc:
        def mallopt(self, *_: int) -> int:
            called.append("mallopt")
            return 1

        def malloc_trim(self, _: int) -> None:
            called.append("malloc_trim")

    monkeypatch.setattr(hardware, "_glibc", Libc)
    hardware.return_freed_memory()
    assert called == []
    hardware.keep_freed_memory.__wrapped__()
    hardware.return_freed_memory()
    assert called == ["mallopt", "mallopt", "malloc_trim"]


def test_a_thread_sets_its_own_number_of_threads_only() -> None:
    """Without effect, batches would be decoded by more threads than there are cores, and so more slowly."""
    seen: list[int] = []

    def work() -> None:
        hardware.set_num_threads_of_this_thread(1)
        torch.ones(200, 200) @ torch.ones(200, 200)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1]
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (2, 2)


def test_without_a_setter_for_one_thread_pytorchs_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_: object) -> NoReturn:
        raise OSError("no such library")

    called: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", called.append)
    monkeypatch.setattr("ctypes.CDLL", not_found)
    hardware._thread_setters.cache_clear()
    try:
        hardware.set_num_threads_of_this_thread(1)
    finally:
        hardware._thread_setters.cache_clear()
    assert called == [1]
