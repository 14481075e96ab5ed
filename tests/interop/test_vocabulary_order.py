"""Foreign ids in Headway's order, and the reverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import BundleError
from headway.interop.vocabulary_order import VocabularyOrder


def test_special_tokens_come_first_and_the_others_keep_their_order() -> None:
    assert VocabularyOrder.from_special_ids(8, pad=6, start=5, end=0, unknown=2).order == (6, 5, 0, 2, 1, 3, 4, 7)


@pytest.mark.parametrize(("start", "ours"), [(6, 0), (0, 2)])
def test_a_start_that_is_another_token_is_there_twice(start: int, ours: int) -> None:
    """In the reverse direction, the duplicate is padding or the end symbol; text never has the begin symbol."""
    vocabulary = VocabularyOrder.from_special_ids(8, pad=6, start=start, end=0, unknown=2)
    assert len(vocabulary) == 9
    assert vocabulary.order == (6, start, 0, 2, 1, 3, 4, 5, 7)
    assert vocabulary.to_headway_ids([start]) == (ours,)
    assert vocabulary.order[1] == vocabulary.order[ours] == start


@given(
    st.integers(4, 30).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)), st.sampled_from([0, 1, 2])))
)
def test_a_round_trip_restores_foreign_ids(drawn: tuple[int, list[int], int]) -> None:
    size, (pad, end, unknown, other, *_), which = drawn
    vocabulary = VocabularyOrder.from_special_ids(
        size, pad=pad, start=(pad, end, other)[which], end=end, unknown=unknown
    )
    everything = range(size)
    assert [vocabulary.order[ours] for ours in vocabulary.to_headway_ids(everything)] == list(everything)
    assert sorted(set(vocabulary.order)) == list(everything)
    assert vocabulary.order[0] == pad
    assert vocabulary.order[2:4] == (end, unknown)


@pytest.mark.parametrize(
    ("special", "message"),
    [
        ({"pad": 8}, "the pad token's id 8 is not in the vocabulary, which has 8 tokens"),
        ({"start": -1}, "the start token's id -1 is not in the vocabulary"),
        ({"end": 6}, r"the pad and end tokens are the same \(id 6\), but Headway needs two"),
        ({"unknown": 6}, "the pad and unknown tokens are the same"),
        ({"unknown": 0}, "the end and unknown tokens are the same"),
        ({"unknown": 5}, "the start and unknown tokens are the same"),
    ],
)
def test_special_tokens_that_make_no_sense_are_explained(special: dict[str, int], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        VocabularyOrder.from_special_ids(8, **{"pad": 6, "start": 5, "end": 0, "unknown": 2} | special)


def test_an_id_that_is_not_there_is_explained() -> None:
    with pytest.raises(BundleError, match="token id 8 is not in the vocabulary, whose ids are 0 to 7"):
        VocabularyOrder.from_special_ids(8, pad=6, start=6, end=0, unknown=2).to_headway_ids([3, 8])


def test_special_tokens_that_are_missing_duplicate_other_rows() -> None:
    """Marian's vocabularies have neither padding nor a first token, and OpenNMT-py's sources have no end."""
    marian = VocabularyOrder.with_duplicates(5, pad=None, start=None, end=0, unknown=1)
    assert marian.order == (0, 0, 0, 1, 2, 3, 4)
    assert marian.duplicates == (0, 1)
    assert marian.to_headway_ids(range(5)) == (2, 3, 4, 5, 6)
    source = VocabularyOrder.with_duplicates(5, pad=1, start=None, end=None, unknown=0)
    assert source.order == (1, 2, 2, 0, 2, 3, 4)
    assert source.duplicates == (1, 2)
    assert source.to_headway_ids(range(5)) == (3, 0, 4, 5, 6)
