"""Language codes of several standards mean the same language."""

from __future__ import annotations

import pytest

from headway.text.languages import base_language, normalize_language_code


def test_codes_of_three_letters_become_codes_of_two() -> None:
    assert normalize_language_code("deu_Latn") == "de-latn"
    assert normalize_language_code("pt_BR") == "pt-br"


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("de", "de"),
        ("DE-at", "de"),
        ("deu", "de"),
        ("ger", "de"),
        ("zho_Hans", "zh"),
        ("cmn", "zh"),
        ("chi", "zh"),
        ("zh-TW", "zh"),
        ("jpn_Jpan", "ja"),
        ("kor_Hang", "ko"),
        ("khm_Khmr", "km"),
        ("iw", "he"),
        ("gla_Latn", "gd"),
        ("ace_Latn", "ace"),
    ],
)
def test_base_language(code: str, language: str) -> None:
    assert base_language(code) == language
