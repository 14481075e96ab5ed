"""BPE-dropout: the right distribution, and reproducible for each seed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import sqrt
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.text import bpe_dropout as dropout_module
from headway.text.bpe_dropout import BPEDropoutEncoder, segment_with_dropout
from headway.text.tokenizer import Tokenizer, TokenizerConfig

Ranks = Mapping[tuple[str, str], int]
CORPUS = ["the lower house, the lowest house", "newest houses  in 2024", "der Fuchs\tund der Hund"] * 4


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(CORPUS, TokenizerConfig(vocab_size=340))


def rows(encoder: BPEDropoutEncoder, texts: list[str]) -> list[list[int]]:
    packed = encoder.encode(texts)
    return [part.tolist() for part in np.split(packed.ids, np.cumsum(packed.lengths)[:-1])]


def distribution(word: tuple[str, ...], ranks: Ranks, p: float) -> dict[tuple[str, ...], float]:
    """Algorithm 1 as in the paper, with every set of merges that may be skipped, and its probability."""
    merges = [(ranks[pair], at) for at, pair in enumerate(pairwise(word)) if pair in ranks]
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for subset in range(1 << len(merges)):
        kept = [merge for number, merge in enumerate(merges) if subset >> number & 1]
        share = (1 - p) ** len(kept) * p ** (len(merges) - len(kept))
        if not kept:
            found[word] += share
            continue
        _, at = min(kept)
        for pieces, chance in distribution((*word[:at], word[at] + word[at + 1], *word[at + 2 :]), ranks, p).items():
            found[pieces] += share * chance
    return found


def test_two_merges_by_hand() -> None:
    """For "abc", with a+b before b+c and ab+c: both are skipped, or only the first, or neither.

    ``a b c``: p^2. ``a bc``: (1 - p) p, and then nothing fits. ``ab c``: (1 - p), then ab+c is skipped, p. ``abc``:
    (1 - p)^2.
    """
    p = 0.3
    ranks = {("a", "b"): 0, ("b", "c"): 1, ("ab", "c"): 2}
    expected = {("a", "b", "c"): p * p, ("a", "bc"): (1 - p) * p, ("ab", "c"): (1 - p) * p, ("abc",): (1 - p) ** 2}
    assert distribution(("a", "b", "c"), ranks, p) == pytest.approx(expected)
    assert_sampled("abc", ranks, p)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("word", ["aaaa", "abab", "abcab"])
def test_samples_follow_the_papers_algorithm(word: str, p: float) -> None:
    assert_sampled(word, {("a", "b"): 1, ("b", "c"): 0, ("a", "a"): 2, ("ab", "ab"): 3, ("a", "bc"): 4}, p)


def assert_sampled(word: str, ranks: Ranks, p: float) -> None:
    """Each frequency in 4,000 samples is within five standard deviations."""
    draw, count = Random(1).random, 4000
    found = Counter(tuple(segment_with_dropout(word, ranks, p, draw)) for _ in range(count))
    expected = distribution(tuple(word), ranks, p)
    assert sum(expected.values()) == pytest.approx(1)
    assert found.keys() <= expected.keys()
    for pieces, share in expected.items():
        assert abs(found[pieces] - count * share) <= 5 * sqrt(count * share * (1 - share)) + 1e-9


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_without_dropout_the_usual_segmentation_with_all_of_it_bytes(tokenizer: Tokenizer, text: str) -> None:
    assert rows(BPEDropoutEncoder(tokenizer, 0.0, 2, 1), [text]) == [tokenizer.encode(text)] * 2
    nothing = rows(BPEDropoutEncoder(tokenizer, 1 - 1e-12, 1, 1), [text])
    assert [len(row) for row in nothing] == [len(text.encode())]


@given(text=st.text(st.sampled_from("thelowrs  \tHund"), max_size=30), seed=st.integers(0, 9))
def test_no_text_is_lost(tokenizer: Tokenizer, text: str, seed: int) -> None:
    assert {tokenizer.decode(row) for row in rows(BPEDropoutEncoder(tokenizer, 0.4, 5, seed), [text])} == {text}


def test_a_pure_function_of_text_and_seed(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segmentation does not depend on earlier calls, on the cache, or on the process."""
    first = rows(BPEDropoutEncoder(tokenizer, 0.3, 4, 7), CORPUS[:3])
    other = BPEDropoutEncoder(tokenizer, 0.3, 4, 7)
    assert [row for text in CORPUS[2::-1] for row in rows(other, [text])] == first[8:] + first[4:8] + first[:4]
    monkeypatch.setattr(dropout_module, "_MAX_CACHED", 1)
    assert rows(BPEDropoutEncoder(tokenizer, 0.3, 4, 7), CORPUS[:3]) == first
    assert rows(BPEDropoutEncoder(tokenizer, 0.3, 4, 8), CORPUS[:3]) != first
    code = (
        "import json, sys; from headway.text.tokenizer import *\n"
        "from headway.text.bpe_dropout import BPEDropoutEncoder;"
        "texts = json.load(sys.stdin); tokenizer = Tokenizer.train(texts * 4, TokenizerConfig(vocab_size=340));"
        "print(BPEDropoutEncoder(tokenizer, 0.3, 4, 7).encode(texts).ids.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(CORPUS[:3]), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [index for row in first for index in row]


def test_occurrences_and_segmentations_differ(tokenizer: Tokenizer) -> None:
    """A word with several merges, 200 times in a text: many segmentations, with the paper's frequencies."""
    word, p = " lowest", 0.3
    (spelled,) = tokenizer.byte_spelled_words(word)
    shares = distribution(tuple(spelled), tokenizer.merge_ranks, p)
    whole = sum(share for pieces, share in shares.items() if len(pieces) == 1)
    assert 0.05 < whole < 0.95
    draws = []
    for seed in range(20):  # one seed has 64 segmentations of a word
        encoder = BPEDropoutEncoder(tokenizer, p, 3, seed)
        found = [tokenizer.display(row) for row in rows(encoder, ["x" + word * 200])]
        assert found[0] != found[1] != found[2] != found[0]
        draws += [sample for sample in encoder._chunks[word].samples if sample]
    # Each of the 20 x 64 samples is drawn independently; nearly all of them were used.
    share = sum(len(sample) == 4 for sample in draws) / len(draws)
    assert len(draws) > 1200
    assert abs(share - whole) <= 5 * sqrt(whole * (1 - whole) / len(draws))


@pytest.mark.parametrize("kind", ["characters", "whitespace"])
def test_only_bpe_has_merges(kind: str) -> None:
    other = Tokenizer.train(CORPUS, TokenizerConfig.model_validate({"kind": kind}))
    with pytest.raises(
        ConfigError, match=rf"data\.bpe_dropout = 0\.1: only Headway's own bpe .* the tokenizer is '{kind}'; set data"
    ):
        BPEDropoutEncoder(other, 0.1, 8, 1)


def draws(*numbers: float) -> Callable[[], float]:
    return iter(numbers).__next__


def test_one_decision_after_the_other() -> None:
    """ "aab" with a+a before a+b: the first is skipped, the second is not; then nothing fits. No more is drawn."""
    ranks = {("a", "a"): 0, ("a", "b"): 1}
    assert segment_with_dropout("aab", ranks, 0.5, draws(0.1, 0.9)) == ["a", "ab"]
    assert segment_with_dropout("aab", ranks, 0.5, draws(0.9)) == ["aa", "b"]
    assert segment_with_dropout("aab", ranks, 0.5, draws(0.1, 0.1)) == ["a", "a", "b"]
