"""Probabilities of languages for batches are those of py3langid, text by text."""

from __future__ import annotations

import numpy as np
import pytest

from headway.corpus.cleaning.language import LanguageDetector, language_detector
from headway.errors import ConfigError

TEXTS = [
    "Das ist ein Haus, und dort steht ein Baum.",
    "This is a house.",
    "C'est la vie.",
    "",
    "12345 !!!",
    "DAS IST LAUT.",
    "Noe\u0308l",
    "Это по-русски",
    "日本語のテキスト",
    "Zdravo, kako si? Здраво, како си?",
    "a",
    "Tom ging nach Hause. " * 30,
]


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return language_detector()


def test_they_are_those_of_the_library(detector: LanguageDetector) -> None:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    library = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text, row in zip(TEXTS, detector.probabilities(TEXTS), strict=True):
        expected = dict(library.rank(text))
        np.testing.assert_allclose(row, [expected[name] for name in detector.languages], rtol=2e-4, atol=1e-9)


def test_other_texts_of_the_batch_change_nothing(detector: LanguageDetector) -> None:
    together = detector.probabilities(TEXTS * 40)  # more features than are added at a time
    for number, text in enumerate(TEXTS):
        np.testing.assert_array_equal(together[number], detector.probabilities([text])[0])
    assert detector.probabilities([]).shape == (0, len(detector.languages))


def test_codes_have_all_usual_forms(detector: LanguageDetector) -> None:
    german = detector.column("de")
    assert {detector.column(code) for code in ("deu", "ger", "de-AT", "deu_Latn", "DE")} == {german}
    assert detector.languages[detector.column("nb")] in ("no", "nb")
    with pytest.raises(ConfigError, match="language 'tlh' cannot be detected by py3langid"):
        detector.column("tlh")
