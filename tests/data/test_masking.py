"""Hidden tokens: their share, what replaces them, whole words and spans, and a pure function of seed and epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_text_blocks import store

from headway.data.masking import MaskedBlockDataset, Masking, MaskingConfig
from headway.errors import ConfigError
from headway.text.base import BOS, EOS, MASK
from headway.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = "The quick brown foxes jumped over lazy dogs; nobody, not öxen noticed them. " * 12
TOKENIZER = Tokenizer.train([TEXT[:400]], TokenizerConfig.parse({"vocab_size": 300}, "test"), tags=(MASK,))
TOKENS = np.array(TOKENIZER.encode(TEXT))


def hide(seed: int, tokens: NDArray[np.int64] = TOKENS, **options: Any) -> tuple[Any, Any]:
    masking = Masking(MaskingConfig.parse(options, "test"), TOKENIZER)
    return masking.mask_tokens(tokens, np.random.default_rng(seed))


@pytest.mark.parametrize("unit", ["tokens", "words", "spans"])
def test_shares_are_as_configured(unit: str) -> None:
    hidden = masked = kept = 0
    for seed in range(60):
        read, predicted = hide(seed, unit=unit)
        assert (read == TOKENS)[~predicted].all()
        hidden += predicted.sum()
        masked += (read == TOKENIZER.mask_id).sum()
        kept += (read == TOKENS)[predicted].sum()
    assert hidden / (60 * len(TOKENS)) == pytest.approx(0.15, abs=0.01)
    assert masked / hidden == pytest.approx(0.8, abs=0.03)
    assert kept / hidden == pytest.approx(0.1, abs=0.03)  # a random token is rarely the same


def test_exactly_the_rounded_share_of_single_tokens_is_hidden() -> None:
    for size in (1, 3, 10, 50):
        assert hide(1, TOKENS[:size])[1].sum() == max(round(0.15 * size), 1)


def test_words_are_hidden_as_a_whole() -> None:
    """A word and the space before it is hidden completely or not at all, also where tokens divide a character."""
    spelled = {index: token for token, index in TOKENIZER.vocabulary.items()}
    words, at = [], 0
    for word in TOKENIZER.byte_spelled_words(TEXT):
        begin, left = at, len(word)
        while left:
            left -= len(spelled[int(TOKENS[at])])
            at += 1
        words.append((begin, at))
    seen = set()
    for seed in range(20):
        predicted = hide(seed, unit="words")[1]
        for begin, end in words:
            assert predicted[begin:end].all() or not predicted[begin:end].any(), TOKENIZER.display(
                TOKENS[begin:end].tolist()
            )
            seen.add((end - begin, bool(predicted[begin])))
    assert {(1, True), (2, True), (3, True)} <= seen


def test_spans_have_geometric_lengths_and_one_kind_of_replacement() -> None:
    """With one token for each word, a span that stands alone is a run of hidden tokens."""
    words = [f"w{number}" for number in range(400)]
    tokenizer = Tokenizer.train([" ".join(words)], TokenizerConfig.parse({"kind": "whitespace"}, "test"), tags=(MASK,))
    tokens = np.array(tokenizer.encode(" ".join(words)))
    masking = Masking(MaskingConfig(unit="spans", fraction=0.02), tokenizer)
    runs = []
    for seed in range(300):
        read, predicted = masking.mask_tokens(tokens, np.random.default_rng(seed))
        assert predicted.sum() == 8
        edges = np.flatnonzero(np.diff(np.concatenate([[0], predicted, [0]])))
        for begin, end in edges.reshape(-1, 2):
            runs.append(end - begin)
            kinds = {(read[at] == tokenizer.mask_id, read[at] == tokens[at]) for at in range(begin, end)}
            assert len(kinds) == 1 or end - begin > 1  # neighboring spans may differ
    # Lengths have the mean 3.8 (SpanBERT, figure 2); the budget of 8 tokens shortens the last one.
    assert 2.3 < np.mean(runs) < 3.8
    assert max(runs) <= 8


def test_special_tokens_are_never_hidden() -> None:
    tokens = np.array([EOS, 3, *TOKENS[:4], EOS, *TOKENS[4:9], 3])
    for unit in ("tokens", "words", "spans"):
        for seed in range(20):
            predicted = hide(seed, tokens, unit=unit, fraction=0.9)[1]
            assert not predicted[tokens < 5].any()
    read, predicted = hide(1, np.array([EOS, EOS]), unit="spans")
    assert read.tolist() == [EOS, EOS]
    assert not predicted.any()


@pytest.mark.parametrize("unit", ["words", "spans"])
@pytest.mark.parametrize("text", ["Xabc def", "ab Xc def", "X", "XX a"])
def test_an_unknown_character_is_no_part_of_a_word(unit: str, text: str) -> None:
    characters = Tokenizer.train(["abc def"], TokenizerConfig.parse({"kind": "characters"}, "test"), tags=(MASK,))
    masking = Masking(MaskingConfig.parse({"unit": unit, "fraction": 0.01}, "test"), characters)
    tokens = np.array(characters.encode(text))
    for seed in range(20):
        _, predicted = masking.mask_tokens(tokens, np.random.default_rng(seed))
        assert not predicted[[at for at, character in enumerate(text) if character == "X"]].any()
        word = predicted[text.find("abc") :][:3] if "abc" in text else predicted[:0]
        assert word.all() or not word.any()


def test_random_tokens_are_text() -> None:
    read, predicted = hide(1, mask=0.0, random=1.0)
    assert (read[predicted] >= 5).all()


def test_impossible_masking_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mask \+ random = 1.4: expected shares that add up to at most 1"):
        hide(1, mask=0.9, random=0.5)
    plain = Tokenizer.train([TEXT], TokenizerConfig.parse({"vocab_size": 300}, "test"))
    with pytest.raises(ConfigError, match="has no mask token"):
        Masking(MaskingConfig(), plain)


# Blocks.


def dataset(folder: Path, seed: int = 1, name: str = "a") -> MaskedBlockDataset:
    masking = Masking(MaskingConfig(fraction=0.3), TOKENIZER)
    return MaskedBlockDataset([store(folder / name, 10, 83)], block_length=10, masking=masking, seed=seed)


def rows_and_batches(data: MaskedBlockDataset, epoch: int, max_tokens: int = 20) -> Any:
    plan = data.plan_epoch(1, epoch, max_batch_tokens=max_tokens, pool_size=1)
    return [
        (row, data.batch(rows).source[at], data.batch(rows).target[at]) for rows in plan for at, row in enumerate(rows)
    ]


def test_blocks_are_between_bos_and_eos_with_their_originals_as_targets(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    assert data.max_length == 10
    for plan in (data.plan_epoch(1, 3, max_batch_tokens=30, pool_size=1), data.plan_sequential(30)):
        for rows in plan:
            batch = data.batch(rows)
            assert batch.source.size <= 30
            for read, target in zip(batch.source, batch.target, strict=True):
                last = int(np.flatnonzero(read)[-1])
                assert (read[0], read[last], target[0], target[last]) == (BOS, EOS, 0, 0)
                unchanged = read[1:last][target[1:last] == 0]
                text = np.where(target[1:last] != 0, target[1:last], read[1:last])
                assert (np.diff(text) == 1).all()  # the store counts up
                assert len(unchanged) + (target != 0).sum() == last - 1
                assert (target != 0).sum() == max(round(0.3 * (last - 1)), 1)
    validation = [data.batch(rows) for rows in data.plan_sequential(30)]
    assert sum((batch.source > 2).sum() for batch in validation) == 83


def test_each_epoch_hides_other_tokens_and_repeats_exactly(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    epochs = [rows_and_batches(data, epoch) for epoch in range(12)]
    again = rows_and_batches(dataset(tmp_path, name="b"), 7)
    assert all((x[1] == y[1]).all() and (x[2] == y[2]).all() for x, y in zip(epochs[7], again, strict=True))
    hidden: dict[int, list[tuple[int, ...]]] = {}
    for blocks in epochs:  # the same block in several epochs: 12 epochs have 8 offsets
        for row, _, target in blocks:
            hidden.setdefault(int(row) % (len(data) * 8), []).append(tuple(target != 0))
    repeated = [each for each in hidden.values() if len(each) > 1]
    assert repeated
    assert all(len(set(each)) > 1 for each in repeated if len(each) > 2)
    other = rows_and_batches(dataset(tmp_path, seed=2, name="c"), 7)
    assert any((x[2] != y[2]).any() for x, y in zip(epochs[7], other, strict=True))


def test_what_is_hidden_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    together, alone = (rows_and_batches(data, 2, max_tokens) for max_tokens in (60, 10))
    for (row, read, target), (same, alone_read, alone_target) in zip(together, alone, strict=True):
        assert row == same
        assert (read == alone_read).all()
        assert (target == alone_target).all()


def test_validation_hides_the_same_tokens_for_each_seed(tmp_path: Path) -> None:
    first, second = (dataset(tmp_path, seed, str(seed)) for seed in (1, 2))
    for rows in first.plan_sequential(40):
        assert (first.batch(rows).target == second.batch(rows).target).all()
