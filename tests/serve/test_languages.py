"""Language codes as clients write them."""

from __future__ import annotations

import pytest

from headway.serve.languages import detect_language, english_name, find_language


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        ("de", ["de", "en"], "de"),
        ("DE", ["de"], "de"),
        ("de-AT", ["de"], "de"),
        ("pt_BR", ["pt-br", "pt-pt"], "pt-br"),
        ("pt", ["pt-br", "pt-pt"], None),
        ("EN", ["en-GB"], "en-GB"),
        ("zh-Hant", ["zh"], "zh"),
        ("deu_Latn", ["de", "en"], "de"),
        ("de", ["deu_Latn", "eng_Latn"], "deu_Latn"),
        ("zh-TW", ["zho_Hans", "zho_Hant"], "zho_Hant"),
        ("zh", ["zho_Hans", "zho_Hant"], "zho_Hans"),
        ("zh-CN", ["zh"], "zh"),
        ("LV", ["lvs_Latn"], "lvs_Latn"),
        ("fa", ["pes_Arab"], "pes_Arab"),
        ("sw", ["swh_Latn"], "swh_Latn"),
        ("no", ["nob_Latn"], "nob_Latn"),
        ("nb", ["no"], "no"),
        ("iw", ["he"], "he"),
        ("fil", ["tgl_Latn"], "tgl_Latn"),
        ("zz", ["de"], None),
        ("", ["de"], None),
    ],
)
def test_codes_are_found_whatever_their_case_region_or_script(code: str, known: list[str], found: str | None) -> None:
    assert find_language(code, known) == found


def test_names() -> None:
    assert english_name("PT-br") == "Portuguese"
    assert english_name("tlh") == "tlh"


@pytest.mark.parametrize(
    ("text", "code"),
    [("Guten Morgen, wie geht es Ihnen?", "de"), ("Good morning, how are you?", "en"), ("Bonjour à tous", "fr")],
)
def test_the_language_of_a_text(text: str, code: str) -> None:
    found = detect_language(text, ["de", "en", "fr"])
    assert found.code == code
    assert 0.1 < found.confidence <= 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Das ist kein englischer Satz.", "de"),
        ("Ceci est une phrase en français.", "fr"),
        ("La maison est grande.", "fr"),
        ("Il mio nome è Marco.", "it"),
        ("Эта фраза на русском языке.", "ru"),
    ],
)
def test_a_language_that_no_model_translates_is_named(text: str, code: str) -> None:
    found = detect_language(text, ["en"])
    assert found.code == code
    assert found.confidence > 0.3


@pytest.mark.parametrize("text", ["Hotel", "Berlin", "3 km", "Angela Merkel", "Good morning", "1234", ""])
def test_a_text_that_could_be_in_many_languages_is_in_one_that_is_served(text: str) -> None:
    found = detect_language(text, ["en"])
    assert found.code == "en"
    assert found.confidence < 0.5, "the detector is not sure of a few letters"


def test_a_detected_language_is_not_one_of_its_scripts() -> None:
    text = "Это простое русское предложение о погоде и о доме."
    assert detect_language(text, ["en", "ru", "ru_Latn"]).code == "ru"
    assert detect_language(text, ["en", "ru_Latn"]).code == "ru_Latn"
