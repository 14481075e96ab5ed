"""The options of a translation: checked once, equal keys for equal options, and the same keywords in Python."""

from __future__ import annotations

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


def test_equal_options_are_pickled_to_equal_keys() -> None:
    given = TranslateOptions(decoding=DecodingOptions(beam_size=4), protect=True, markup=MarkupOptions.of("html"))
    assert given.model_fields_set != TranslateOptions(markup="html").model_fields_set
    assert pickle.dumps(given) == pickle.dumps(TranslateOptions(markup="html"))
    assert pickle.dumps(given) != pickle.dumps(TranslateOptions(markup="xml"))


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
