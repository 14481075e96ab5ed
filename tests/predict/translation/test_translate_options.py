"""The options of a translation: checked once, equal keys for equal options, and the same keywords in Python."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from headway.decode import DecodingOptions
from headway.errors import ConfigError
from headway.predict import MarkupOptions, TranslateOptions, Translator
from headway.predict.translation.options import TranslateKeywords


def test_keywords_and_fields_are_the_same() -> None:
    assert {"decoding", *TranslateKeywords.__annotations__} == TranslateOptions.model_fields.keys()


@pytest.mark.parametrize(
    "options",
    [
        TranslateOptions(),
        TranslateOptions(decoding=DecodingOptions.parse({"n_best": 2, "sampling": {}}, "test"), alignment=True),
        TranslateOptions(source_language="de", target_language="en", protect=False),
        TranslateOptions(markup=MarkupOptions(kind="xml", ignore_tags=("keep",))),
        TranslateOptions(target_language="\udcff", markup=MarkupOptions(kind="xml", ignore_tags=("\ud800",))),
    ],
)
def test_pickled_options_are_equal(options: TranslateOptions) -> None:
    assert pickle.loads(pickle.dumps(options)) == options


def test_only_short_options_are_kept_in_memory() -> None:
    """Long options contain lists from a request. Kept options still tell which values were given."""
    short, long = TranslateOptions(), TranslateOptions(markup=MarkupOptions(kind="xml", ignore_tags=("tag",) * 500))
    for options, is_kept in ((short, True), (long, False)):
        first, second = (pickle.loads(pickle.dumps(options)) for _ in range(2))
        assert (first is second) is is_kept
    given = pickle.loads(pickle.dumps(TranslateOptions(decoding=DecodingOptions(beam_size=4))))
    assert given.decoding.model_fields_set == {"beam_size"}
    assert not pickle.loads(pickle.dumps(short)).decoding.model_fields_set


def test_equal_options_are_pickled_to_equal_keys() -> None:
    given = TranslateOptions(decoding=DecodingOptions(), protect=True, markup=MarkupOptions.of("html"))
    assert given.model_fields_set != TranslateOptions(markup="html").model_fields_set
    assert pickle.dumps(given) == pickle.dumps(TranslateOptions(markup="html"))
    assert pickle.dumps(given) != pickle.dumps(TranslateOptions(markup="xml"))


def test_a_given_default_stays_given() -> None:
    """It takes precedence over the default of a model, in whatever process that model is."""
    model = DecodingOptions(beam_size=6, length_penalty=1.0)
    given = pickle.loads(pickle.dumps(TranslateOptions(decoding=DecodingOptions(beam_size=4)))).with_defaults(model)
    assert (given.decoding.beam_size, given.decoding.length_penalty) == (4, 1.0)
    again = pickle.loads(pickle.dumps(given))
    assert again == given == again.with_defaults(DecodingOptions(beam_size=5, length_penalty=0.2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"beam_size": 6, "stopping": "first", "min_length": 9}),
        ({"beam_size": 4}, {"beam_size": 4, "stopping": "first", "min_length": 9}),
        ({"sampling": {}}, {"sampling": {}, "min_length": 9}),
        ({"max_length": 4}, {"beam_size": 6, "stopping": "first", "max_length": 4}),
    ],
)
def test_options_that_are_not_given_are_the_models(given: dict[str, Any], expected: dict[str, Any]) -> None:
    model = DecodingOptions(beam_size=6, stopping="first", min_length=9, max_length=200)
    assert DecodingOptions.parse(given, "test").with_defaults(model) == DecodingOptions.parse(expected, "test")


def test_a_model_searches_with_its_own_settings(make_translator: Callable[..., Translator]) -> None:
    plain = make_translator()
    settings = DecodingOptions(beam_size=2, normalization="average", length_penalty=2.0, max_length=3)
    own = Translator(dataclasses.replace(plain.bundle, search=settings), precision="float32")
    text = "das Haus ist klein und das Haus ist grün"
    assert own.translate(text) == own.translate(text, settings) == plain.translate(text, settings)
    assert len(own.translate(text).candidates[0].tokens) <= 3
    longer = DecodingOptions(max_length=8)  # and the model's beam and penalty
    assert own.translate(text, longer) == plain.translate(text, settings.model_copy(update={"max_length": 8}))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"target_langauge": "en"}, "options: unknown key 'target_langauge'; did you mean 'target_language'"),
        ({"markup": "htm"}, "markup: kind = 'htm'"),
        ({"protect": "perhaps"}, "options: protect = 'perhaps'"),
    ],
)
def test_wrong_keywords_are_refused_in_the_users_language(
    make_translator: Callable[..., Translator], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_translator().translate("das Haus", **keywords)
    assert str(refused.value).startswith(message)
