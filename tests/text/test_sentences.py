"""Sentences: codes of languages in every form, and periods that end no sentence."""

from __future__ import annotations

import pytest

from headway.text.sentences import split_sentences


@pytest.mark.parametrize("code", ["de", "deu", "ger", "deu_Latn", "de-AT", "DE"])
def test_a_language_has_one_segmenter_under_all_its_codes(code: str) -> None:
    assert split_sentences("Am 6. Januar kam er. Ja.", code) == ["Am 6. Januar kam er. ", "Ja."]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("deu_Latn", "Am 3. Tag ging er. "),
        ("de", "Die 2. Auflage ist da. "),
        ("de", "Im 19. Jahrhundert lebte er. "),
        ("de", "Das war J. S. Bach. "),
        ("fra_Latn", "M. Dupont est venu. "),
        ("fr", "Mme. Dupont et Mgr. Martin sont venus. "),
        ("es", "D. Juan y la Dra. Ruiz vinieron. "),
        ("it", "Il Dott. Rossi e l'On. Bianchi sono qui. "),
        ("pt", "A Profa. Silva veio. "),
        ("nl", "Mevr. Jansen kwam. "),
        ("en", "Mr. Smith and J. R. R. Tolkien came. "),
        ("pl", "Dnia 6. stycznia przyszedł ks. Nowak. "),
        ("pl", "Św. Jan przyszedł. "),
        ("ces_Latn", "Dne 6. ledna přišel Ing. Novák. "),
        ("hrv_Latn", "Dana 6. siječnja došao je dr. Horvat. "),
        ("hrv_Latn", "Rođen je 1999. godine u Zagrebu. "),
        ("lvs_Latn", "Viņš dzimis 1985. gadā. "),
        ("hun_Latn", "Ő 2020. január 6-án jött. "),
        ("hun_Latn", "A 6. Kerület szép. "),
        ("nob_Latn", "Den 6. januar kom hr. Berg. "),
        ("swe_Latn", "Den 6. januari kom han. "),
        ("bul_Cyrl", "Той дойде на 6. януари. "),
        ("fin_Latn", "Hän tuli 6. tammikuuta. "),
        ("isl_Latn", "Þann 6. janúar kom hann. "),
        ("est_Latn", "Ta tuli 6. jaanuaril. "),
        ("tr", "Av. Yılmaz geldi. "),
        ("ron_Latn", "Dl. Popescu a venit la Sf. Ioan. "),
        ("ukr_Cyrl", "Прийшов І. Франко. "),
        ("rus_Cyrl", "Проф. А. С. Иванов пришёл. "),
        ("ell_Grek", "Ο κ. Παπαδόπουλος ήρθε. "),
    ],
)
def test_a_period_inside_a_sentence_does_not_end_it(code: str, sentence: str) -> None:
    assert split_sentences(sentence + sentence, code) == [sentence, sentence]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("de", "Er wurde 6. |Danach ging er."),
        ("de", "Es geschah im Jahr 1999. |Dann kam er."),
        ("en", "It was I. |Then he left."),
        ("en", "He was 6. |Then he left."),
        ("en", "I said no. |Then I left."),
        ("en", "It is by M. L. King Jr. |He was great."),
        ("fr", "C'est de l'art. |Il rit."),
        ("de", "Er kam mit Frau.\n|M. ging."),
        ("da", "Det var Christian 4. |Han var konge."),
        ("zh-Hans", "你好。|我走了。|你呢？"),
    ],
)
def test_sentences_that_end_are_separate(code: str, text: str) -> None:
    assert split_sentences(text.replace("|", ""), code) == text.split("|")


def test_nothing_is_lost() -> None:
    text = " \n1. Eins.  2. Zwei! M.\tN. …\n\n"
    assert "".join(split_sentences(text, "source")) == text
    assert split_sentences("", "de") in ([], [""])


@pytest.mark.parametrize(
    "text", ["。「" * 30_000, "\n" * 20_000, "Ein Satz. Noch einer! " * 3000], ids=["。「", "\\n", "ein"]
)
def test_long_texts_are_split_piece_by_piece_and_lose_nothing(text: str) -> None:
    sentences = split_sentences(text, "de")
    assert "".join(sentences) == text
    assert max(map(len, sentences)) <= 30_000
    if "Satz" in text:
        assert set(sentences) == {"Ein Satz. ", "Noch einer! "}


def test_letters_of_georgian_have_no_case() -> None:
    assert split_sentences("ეს არის 5. ის მოვიდა.", "ka") == ["ეს არის 5. ", "ის მოვიდა."]
