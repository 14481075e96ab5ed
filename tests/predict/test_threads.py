"""Many threads may call one object, and a result depends neither on them nor on the rest of the batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from headway import kernels
from headway.decode import DecodingOptions, Sampling
from headway.errors import HeadwayError
from headway.predict import Classifier, TranslateOptions, Translation, Translator

MakeTranslator = Callable[..., Translator]
MakeClassifier = Callable[..., Classifier]
T = TypeVar("T")
R = TypeVar("R")

THREADS = 8
WORDS = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]
SHORT = [" ".join(random.Random(seed).choices(WORDS, k=3 + seed % 9)) for seed in range(20)]
LONG = [" ".join(random.Random(seed).choices(WORDS, k=length)) for seed, length in enumerate((70, 260))]
OPTIONS = {
    "beam": DecodingOptions(max_length=8),
    "sample": DecodingOptions(sampling=Sampling(seed=7), max_length=8),
}
PRECISIONS = [
    "float32",
    pytest.param("int8", marks=pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels here")),
]


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(function: Callable[[T], R], inputs: Sequence[T]) -> list[R]:
    """Return what ``function`` returns for each input, computed by eight threads that start together."""
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(function, inputs))


def chunks(texts: Sequence[str], size: int) -> list[list[str]]:
    return [list(texts[start : start + size]) for start in range(0, len(texts), size)]


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_translations_and_alignments_equal_those_of_one_thread(
    make_translator: MakeTranslator, precision: str, options: DecodingOptions
) -> None:
    """Every number is equal, because each call has the same batches. New objects build their lazy parts in threads."""
    calls = chunks([*SHORT, *LONG], 3)

    def translating(translator: Translator) -> Callable[[list[str]], list[Translation | HeadwayError]]:
        return lambda texts: translator.translate_each(texts, TranslateOptions(decoding=options, alignment=True))

    settings = {"precision": precision, "max_source_tokens": 800}
    one, many = (make_translator(settings=settings, decoder_layers=2) for _ in range(2))
    expected = list(map(translating(one), calls))
    assert in_threads(translating(many), calls) == expected
    assert len({str(each) for call in expected for each in call}) > len(SHORT) / 2  # else mix-ups would pass


@pytest.mark.parametrize("attention", ["bahdanau", "luong"])
def test_recurrent_models_align_in_threads(make_translator: MakeTranslator, attention: str) -> None:
    from headway.bundle import Bundle
    from headway.models.recurrent import RecurrentConfig, RecurrentModel

    bundle = make_translator().bundle
    config = RecurrentConfig.parse({"d_model": 16, "d_embedding": 8, "attention": attention, "tie": "none"}, "test")
    size = bundle.source_tokenizer.vocab_size
    translator = Translator(
        Bundle(bundle.task, RecurrentModel(config, size, size).eval(), bundle.source_tokenizer, bundle.target_tokenizer)
    )
    calls = chunks(SHORT, 3)

    def translate(texts: list[str]) -> list[Translation]:
        return translator.translate(texts, OPTIONS["beam"], alignment=True)

    assert in_threads(translate, calls) == list(map(translate, calls))


def test_ensembles_and_scores_in_threads(make_translator: MakeTranslator) -> None:
    members = [make_translator(seed=seed) for seed in (3, 4)]
    both = Translator.ensemble(members)
    calls = chunks(SHORT, 3)

    def translate(texts: list[str]) -> object:
        found = both.translate(texts, OPTIONS["beam"])
        return found, both.score(texts, [each.text for each in found]), both.alternatives(texts[0], "the")

    assert in_threads(translate, calls) == list(map(translate, calls))


def test_classifications_and_explanations_equal_those_of_one_thread(make_classifier: MakeClassifier) -> None:
    one, many = (make_classifier(pooling="attention", max_length=400) for _ in range(2))
    texts = [*SHORT, *LONG]

    def explain(text: str) -> object:
        return many.classify(text), many.explain(text)

    assert in_threads(explain, texts) == [(one.classify(text), one.explain(text)) for text in texts]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_translation_does_not_depend_on_its_neighbors(make_translator: MakeTranslator, precision: str) -> None:
    """In int8 every bit is equal, also for sources of more than 64 tokens. In float32 scores differ by rounding."""
    translator = make_translator(settings={"precision": precision, "max_source_tokens": 800})
    texts = [*SHORT[:12], *LONG]
    assert max(len(translator.bundle.source_tokenizer.encode(text)) for text in LONG) > 256
    together = translator.translate(texts, OPTIONS["beam"])
    alone = [translator.translate(text, OPTIONS["beam"]) for text in texts]
    if precision == "int8":
        assert together == alone
    for one, other in zip(together, alone, strict=True):
        best, same = one.candidates[0], other.candidates[0]
        assert (best.ids, best.flags) == (same.ids, same.flags)
        assert best.token_log_probabilities == pytest.approx(same.token_log_probabilities, abs=1e-4)
