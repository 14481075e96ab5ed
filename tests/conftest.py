"""Fixtures and hooks of all tests.

``--jaxtyping-packages`` (``pyproject.toml``) lets jaxtyping decorate every function of Headway while the tests run, so
that wrong types and shapes fail. A check takes longer than most of our functions on tiny tensors, so each function is
checked on its first calls in each test, and decorated when it is first called.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype
from hypothesis import HealthCheck, settings
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from headway.predict import LanguageModel, MaskedLanguageModel, Translator
    from headway.predict.classification.classifier import Classifier

# All tests but those in tests/gpu are about the CPU. PyTorch reads this when it first looks for a GPU.
if "HEADWAY_TEST_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Without limits on time, tests do not fail on a busy machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_THREADS = int(os.environ.get("HEADWAY_TEST_THREADS", "1"))
_CHECKED_CALLS = 4
_calls: Counter[int] = Counter()  # of each function's code, by its id: the hash of code takes microseconds
_jaxtyped: Any = jaxtyping.jaxtyped
_check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))  # as in mypy and recipes, 2 is a float, too


def _jaxtyped_at_first(function: Any = None, *, typechecker: Any) -> Any:
    """Decorate a function like :func:`jaxtyping.jaxtyped`, but check only its first calls in each test."""
    if function is None:
        return functools.partial(_jaxtyped_at_first, typechecker=typechecker)
    if not isinstance(function, FunctionType):
        return _jaxtyped(function, typechecker=_check_types)
    code, checked = id(function.__code__), None

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if torch.compiler.is_compiling() or _calls[code] >= _CHECKED_CALLS:
            return function(*args, **kwargs)
        _calls[code] += 1
        if checked is None:
            checked = _jaxtyped(function, typechecker=_check_types)
        return checked(*args, **kwargs)

    return wrapper


jaxtyping.jaxtyped = _jaxtyped_at_first  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the tests that train two dozen models first, and most cases of some others (``slow_but_every``)."""
    cases = Counter[str]()
    for item in items:
        if "quick_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if (marker := item.get_closest_marker("slow_but_every")) is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1


def pytest_collection_finish() -> None:
    """Freeze all imported modules, so that the garbage collector does not traverse them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    """Use one thread, because tiny tensors gain nothing from more; ``tests/settings.py`` also tries two."""
    torch.set_num_threads(_THREADS)


@pytest.fixture(autouse=True, scope="session")
def _children_receive_interrupts() -> None:
    """Undo an ignored SIGINT (``nohup make test &``): child processes would inherit it and never see Ctrl-C."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Reset seeds and call counters, so that a test behaves the same on its own and among other tests."""
    random.seed(0)
    torch.manual_seed(0)
    _calls.clear()
    yield
    if torch.get_num_threads() != _THREADS:
        torch.set_num_threads(_THREADS)


class _NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host reads a tensor's value"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_waiting() -> AbstractContextManager[object]:
    """Return a context in which reading a tensor's value fails, because on a GPU the host would wait for it."""
    mode: AbstractContextManager[object] = _NoWaiting()  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError, match="reads a tensor's value"), mode:
        torch.ones(()).item()
    return mode


WORDS = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]


@pytest.fixture(scope="session")
def make_translator() -> Callable[..., Translator]:
    """Return a function that makes tiny translators for :data:`WORDS`, with random weights.

    The end symbol is likely, so that outputs are short and differ in length. The function's arguments are the kind of
    tokenizer, ``seed``, ``settings`` of the translator, and model options.
    """

    def make(kind: str = "bpe", *, seed: int = 3, settings: dict[str, Any] | None = None, **changes: Any) -> Translator:
        from headway.bundle import Bundle, TaskConfig
        from headway.models.registry import build_model
        from headway.models.transformer import TransformerConfig
        from headway.predict import Translator
        from headway.text.tokenizer import Tokenizer, TokenizerConfig

        texts = [" ".join(random.Random(number).sample(WORDS, 6)) for number in range(9)]
        tokenizer = Tokenizer.train(texts, TokenizerConfig.parse({"kind": kind, "vocab_size": 300}, "test"))
        sizes = {
            "d_model": 16,
            "num_heads": 2,
            "d_ff": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "tie": "none",
            "output_bias": True,
        }
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = TransformerConfig.parse({**sizes, **changes}, "test")
            model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
            with torch.no_grad():
                model.projection.weight.mul_(4.0)
                model.projection.bias[2] = math.log(tokenizer.vocab_size / 5)
        task = TaskConfig(source_language="de", target_language="en")
        return Translator(Bundle(task, model, tokenizer, tokenizer), device="cpu", **(settings or {}))

    return make


@pytest.fixture(scope="session")
def make_classifier() -> Callable[..., Classifier]:
    """Return a function that makes tiny classifiers for :data:`WORDS` with three labels and random weights.

    The function's arguments are the kind of tokenizer, ``seed``, and model options. With ``body``, the options of a
    masked language model, it makes a classifier on such a model.
    """

    def make(kind: str = "bpe", *, seed: int = 3, body: dict[str, Any] | None = None, **changes: Any) -> Classifier:
        from headway.bundle import ClassifierBundle, TaskConfig
        from headway.models.classifier import ClassifierConfig
        from headway.models.registry import build_model
        from headway.models.sequence_classifier import SequenceClassifierConfig
        from headway.predict.classification.classifier import Classifier
        from headway.text.tokenizer import Tokenizer, TokenizerConfig

        texts = [" ".join(random.Random(number).sample(WORDS, 6)) for number in range(9)]
        tokenizer = Tokenizer.train(texts, TokenizerConfig.parse({"kind": kind, "vocab_size": 300}, "test"))
        labels = ("Haus", "Baum", "mit Leerzeichen")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "max_length": 30}
            if body is None:
                config: Any = ClassifierConfig.parse({**sizes, **changes}, "test")
            else:
                keys = {"kind": "masked", "encoder_layers": 2, **sizes, **body}
                config = SequenceClassifierConfig.parse({"body": keys, **changes}, "test")
            model: Any = build_model(config, tokenizer.vocab_size, len(labels))
            with torch.no_grad():
                model.projection.bias.normal_()
        task = TaskConfig.parse({"kind": "classification", "source_language": "de"}, "test")
        return Classifier(ClassifierBundle(task, model, tokenizer, labels), device="cpu")

    return make


@pytest.fixture(scope="session")
def make_language_model() -> Callable[..., LanguageModel]:
    """Return a function that makes tiny language models with random weights, whose predictions are far from uniform.

    The function's arguments are the kind of tokenizer, ``seed``, and model options. The tokenizer is trained on
    :data:`WORDS`, or on ``texts``.
    """

    def make(kind: str = "bpe", *, seed: int = 3, texts: Sequence[str] = (), **changes: Any) -> LanguageModel:
        from headway.bundle import LanguageModelBundle, TaskConfig
        from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
        from headway.predict import LanguageModel
        from headway.text.tokenizer import Tokenizer, TokenizerConfig

        texts = texts or [" ".join(random.Random(number).sample(WORDS, 6)) for number in range(9)]
        tokenizer = Tokenizer.train(texts, TokenizerConfig.parse({"kind": kind, "vocab_size": 300}, "test"))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "decoder_layers": 2, "max_length": 32}
            config = DecoderOnlyConfig.parse({**sizes, **changes}, "test")
            model = DecoderOnly(config, tokenizer.vocab_size)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(8)
        bundle = LanguageModelBundle(TaskConfig(kind="language_model"), model, tokenizer)
        return LanguageModel(bundle, device="cpu")

    return make


@pytest.fixture(scope="session")
def make_masked_language_model() -> Callable[..., MaskedLanguageModel]:
    """Return a function that makes tiny masked language models with random weights.

    The function's arguments are the kind of tokenizer, which is trained on :data:`WORDS`, and model options.
    """

    def make(kind: str = "bpe", **changes: Any) -> MaskedLanguageModel:
        from headway.bundle import MaskedLanguageModelBundle, TaskConfig
        from headway.models.masked import MaskedConfig, MaskedTransformer
        from headway.predict import MaskedLanguageModel
        from headway.text.base import MASK
        from headway.text.tokenizer import Tokenizer, TokenizerConfig

        texts = [" ".join(random.Random(number).sample(WORDS, 6)) for number in range(9)]
        config = TokenizerConfig.parse({"kind": kind, "vocab_size": 300}, "test")
        tokenizer = Tokenizer.train(texts, config, tags=[MASK])
        sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 2, "max_length": 32}
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = MaskedTransformer(MaskedConfig.parse({**sizes, **changes}, "test"), tokenizer.vocab_size)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(4)
        bundle = MaskedLanguageModelBundle(TaskConfig(kind="masked_language_model"), model, tokenizer)
        return MaskedLanguageModel(bundle, device="cpu")

    return make


@pytest.fixture
def kinds_of_this_test(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let a test register kinds, which are unregistered at its end, or when the result is undone."""
    from headway.bundle import BUNDLE_TYPES
    from headway.models.registry import ARCHITECTURES
    from headway.nn.scores import SCORES
    from headway.tasks import TASKS

    tables: tuple[Any, ...] = (SCORES, ARCHITECTURES, TASKS, BUNDLE_TYPES)
    for table in tables:
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    return monkeypatch
