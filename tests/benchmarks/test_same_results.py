from __future__ import annotations

from same_results import MODES, compare_translations

from headway.decode import DecodingOptions


def test_every_mode_is_accepted() -> None:
    assert [DecodingOptions.model_validate(options).beam_size for options in MODES.values()][:2] == [1, 4]


def test_scores_are_compared_separately_if_texts_differ() -> None:
    old = [[["a", -1.0], ["b", -2.0]], [["c", -1.0]], []]
    new = [[["a", -1.25], ["b", -2.0]], [["d", -1.5]], []]
    assert compare_translations(old, new) == {
        "equal": 2,
        "of": 3,
        "score_difference": 0.25,
        "score_difference_where_texts_differ": 0.5,
    }
