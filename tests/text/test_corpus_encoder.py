"""The corpus encoder returns the same ids as the tokenizer, for any text."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.text import corpus_encoder as corpus_encoder_module
from headway.text.corpus_encoder import CorpusEncoder, PackedIds, split_if_single_spaced
from headway.text.tokenizer import Tokenizer, TokenizerConfig

CORPUS = ["the quick brown fox's 12 foxes don't jump", "  der  schnelle\tFuchs 2024, 1.5 €", "привет мир 😀😀"] * 3
WORDS = st.sampled_from(
    [
        "the",
        "fox",
        "fox\njumps",
        "end.\n\nNew",
        "don't",
        "12",
        "€5",
        "'s",
        "Ġ",
        "привет",
        "😀",
        "\u00a0",
        "\t",
        "\n",
        "",
        "\u3000x",
    ]
)
TEXTS = st.lists(WORDS).map(" ".join) | st.text(st.characters(exclude_categories=["Cs"]))


def tokenizer(**options: object) -> Tokenizer:
    return Tokenizer.train(CORPUS, TokenizerConfig.model_validate({"vocab_size": 320, **options}), tags=["<2en>"])


TOKENIZERS = [
    *(tokenizer(), tokenizer(split_digits=True), tokenizer(kind="characters"), tokenizer(kind="whitespace")),
    *(tokenizer(kind="words"), tokenizer(kind="words", split_digits=True)),
]


def rows(packed: PackedIds) -> list[list[int]]:
    return (
        [part.tolist() for part in np.split(packed.ids, np.cumsum(packed.lengths)[:-1])] if len(packed.lengths) else []
    )


@given(texts=st.lists(TEXTS, max_size=5))
@example(
    texts=["a b", " a b", "a b ", "a  b", "a \u00a0b", "a\u00a0 b", "a\t b", "a \tb", "", " ", "a\x1c b", "a 1 2b 3"]
)
@example(
    texts=[
        "a b\nc",
        "a\n\n\nb c\n",
        "\n\na",
        "\n",
        "a \nb",
        "a\n b",
        "a  b\nc d",
        "a\x1c\nb",
        "a\r\nb\n\n",
        "1\n2",
        "a\n\n1 2\n\n\n3",
    ]
)
def test_agrees_with_the_tokenizer(texts: list[str]) -> None:
    for each in TOKENIZERS:
        encoder = CorpusEncoder(each)
        for _ in range(2):  # segmented, then read from the cache
            assert rows(encoder.encode(texts)) == each.encode_batch(texts)


def test_only_single_spaces_between_words_are_single_spaced() -> None:
    assert split_if_single_spaced("a bc d") == ["a", "bc", "d"]
    assert split_if_single_spaced("a") == ["a"]
    for text in ["", " ", " a", "a ", "a  b", "a\tb", "a\u00a0b", "a \t b"]:
        assert split_if_single_spaced(text) is None


def test_forgets_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_encoder_module, "_MAX_CACHED", 3)
    encoder = CorpusEncoder(TOKENIZERS[0])
    texts = ["x " + " ".join(f"w{number}" for number in range(10)), "x " + "y" * 1000]
    assert rows(encoder.encode(texts)) == TOKENIZERS[0].encode_batch(texts)
    assert len(encoder._later) <= 3
    assert "y" * 1000 not in encoder._later


@pytest.mark.parametrize("size", [1, 12, 1000])
def test_the_size_of_the_groups_changes_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(corpus_encoder_module, "_GROUP_CHARACTERS", size)
    texts = ["", *CORPUS, "the fox", ""]
    assert rows(CorpusEncoder(TOKENIZERS[0]).encode(texts)) == TOKENIZERS[0].encode_batch(texts)


def test_new_words_are_segmented_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        asked.append(len(texts))
        return plain(self, texts)

    plain = Tokenizer.encode_batch
    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    encoder = CorpusEncoder(TOKENIZERS[0])
    encoder.encode(["a b c d", "b c b e"])
    assert sorted(asked) == [2, 4]  # a and b at the start; b, c, d and e after a space
    asked.clear()
    encoder.encode(["a d e b", "b"])
    assert sum(asked) == 0


def test_travels_to_another_process_without_what_it_remembers() -> None:
    encoder = CorpusEncoder(TOKENIZERS[0])
    encoder.encode(CORPUS)
    copy = pickle.loads(pickle.dumps(encoder))
    assert len(copy._later) == 0 < len(encoder._later)
    assert rows(copy.encode(CORPUS)) == rows(encoder.encode(CORPUS))
    assert copy.vocab_size == TOKENIZERS[0].vocab_size
