"""Split a text into sentences.

Sentences are found by Wikimedia's `sentencex`, which has rules for the terminators and abbreviations of about 300
languages, and fallback rules for others. It often splits after a period that does not end a sentence, so some of its
sentences are joined again:

- after an initial, such as "M. Dupont" and "J. R. R. Tolkien";
- after a title or another abbreviation before a name or a number, such as "Mme. Dupont" and "Św. Jan". Some
  abbreviations count only before a number ("No. 5"), because they are often words at the end of a sentence ("I said
  no.");
- after a number before a lower-case word ("den 6. januar", "1999. godine"); in languages that write ordinal numbers
  with a period, also before any word if the number begins the text or follows a word such as an article ("Am 3. Tag").

A missed boundary does little harm, because overlong sentences are split later, but a wrong boundary divides a phrase.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.text.languages import base_language


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Languages that write ordinal numbers with a period.
_ORDINALS = _words("az bs cs da de et eu fi fo hr hu is lb lt lv mk nb nn no pl sk sl sq sr sv tr")
_TITLES = {
    language: _words(words)
    for language, words in {
        "ca": "sr sra srta dr dra prof",
        "cs": "p pí sl dr ing mgr mudr judr phdr rndr bc doc prof sv ul nám tzv č čl str tř",
        "da": "hr fr frk dr prof nr kl ca",
        "de": "hr hrn fr frl dr prof dipl ing st nr str art abs bd kap abb tab ca bzw vgl hl",
        "el": "κ κα κος δρ καθ αγ αρ",
        "en": "mr mrs ms mx dr prof st gen col capt lt sgt rev hon sen rep gov messrs fig no vs",
        "es": "sr sra srta sres dr dra d dña prof profa ing lic arq ud uds excmo excma ilmo fr núm",
        "et": "hr pr dr prof nr",
        "fi": "hra rva nti dr prof tri toht klo nro esim",
        "fr": "m mm mme mmes mlle mlles mgr dr pr me mes st ste cf art av env chap fig",
        "hr": "g gđa dr prof sv ul br mr ing",
        "hu": "dr id ifj özv prof st kb ún",
        "is": "hr fr dr prof nr",
        "it": "sig sigg dott prof avv ing arch on geom rag cav mons s ss art",
        "lt": "p dr prof šv g",
        "lv": "k dr prof sv",
        "nb": "hr fr frk dr prof nr kl ca st",
        "nl": "dhr mevr mw mej drs dr ir ing mr prof st nr ca bijv",
        "pl": "p pp dr prof mgr inż ks abp bp św ul al pl os nr art im gen płk por",
        "pt": "sr sra srs sras srta dr dra prof profa eng d exmo exma st sto sta n",
        "ro": "dl dna dlui d-l d-na dr prof ing sf str nr art av",
        "ru": "г гг гр др проф акад доц св им ул пл просп пер стр рис табл ст тов",
        "sk": "p sl dr ing mgr mudr judr phdr doc prof sv ul nám tzv č čl",
        "sl": "g ga gdč dr prof mag sv ul št",
        "sr": "г гђа др проф св ул бр g gđa dr prof sv ul br",
        "sv": "hr fr frk dr prof nr kl ca st",
        "tr": "sn dr av prof doç yrd op uzm müh no cad sok mah hz st",
        "uk": "п пп др проф акад доц св ім вул пл просп стор рис ст",
    }.items()
}
_TITLES["nn"] = _TITLES["no"] = _TITLES["nb"]
_TITLES["bs"] = _TITLES["hr"]
# Entries of _TITLES that are treated as abbreviations only before a number.
_BEFORE_NUMBERS = _words("abb abs art bd br ca chap env fig kap kb kl n no nr nro núm os tab č čl рис ст стор стр табл")
# Words that precede ordinal numbers: the word after the number belongs to the same sentence.
_BEFORE_ORDINALS = {
    "de": _words(
        "der die das den dem des ein eine einen einem einer eines am im zum zur vom beim ins ans bis ab und oder jeder "
        "jede jedes jeden jedem dieser diese dieses diesen diesem sein seine seinen seinem seiner seines ihr ihre "
        "ihren ihrem ihrer ihres mein meine meinen meinem meiner unser unsere unseren unserem unserer kein keine keinen"
    ),
    "hu": _words("a az egy"),
    **dict.fromkeys(("da", "nb", "nn", "no", "sv"), _words("den det de")),
}
_BEFORE_ORDINALS["lb"] = _BEFORE_ORDINALS["de"] | {"de", "d", "um", "vum", "am"}

_LAST_WORDS = re.compile(r"(?:(\w+)\s+)?[^\w\s]*([^\W_][\w-]*)\.(\s*)\Z")
_FIRST = re.compile(r"\W*(\w)")


_MAX_PIECE = 10_000  # maximum number of characters to segment at a time
# Strings after which a piece may end, in order of preference.
_PIECE_ENDS = (("\n",), (". ", "! ", "? ", "。", "！", "？"), (" ",))


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of a text. Their concatenation is the text.

    Args:
        text: The text to split.
        language: Language code of the text, such as ``de``, ``de-AT`` or ``deu_Latn``.
    """
    code = base_language(language)
    sentences: list[str] = []
    for sentence in _segments(text, code):
        if sentences and _is_one_sentence(sentences[-1], sentence, code):
            sentences[-1] += sentence
        else:
            sentences.append(sentence)
    return sentences


def _segments(text: str, code: str) -> Iterator[str]:
    """Yield the segments found by `sentencex`. Their concatenation is the text.

    For some texts, its time is quadratic in the length, so the text is segmented in pieces.
    """
    import sentencex

    start = 0
    while start < len(text):
        piece = text[start : start + _MAX_PIECE]
        if start + _MAX_PIECE < len(text):
            ends = (max(piece.rfind(mark) + len(mark) for mark in marks) for marks in _PIECE_ENDS)
            piece = piece[: next((end for end in ends if end > _MAX_PIECE // 2), _MAX_PIECE)]
        start += len(piece)
        parts = list(sentencex.segment(code, piece))
        # `sentencex` loses some line breaks if there are many.
        yield from parts if "".join(parts) == piece else piece.splitlines(keepends=True)


def _is_one_sentence(before: str, after: str, language: str) -> bool:
    """Return whether two segments form a single sentence, by the rules in the module docstring."""
    end, start = _LAST_WORDS.search(before[-80:]), _FIRST.match(after)
    if end is None or start is None or "\n" in end[3]:
        return False
    previous, word, letter = (end[1] or "").casefold(), end[2], start[1]
    if len(word) == 1 and word.isupper():
        return letter.isupper() and (language, word) != ("en", "I")
    if word.isdecimal():
        if letter.islower() and language != "ka":  # all Georgian letters are lower case
            return True
        # A year before a name is rarely an ordinal.
        if language not in _ORDINALS or letter.isdecimal() or len(word) > 3:
            return False
        begins_text = end.start() == 0 and not previous and len(before) <= 80
        return begins_text or previous in _BEFORE_ORDINALS.get(language, ())
    is_title = word.casefold() in _TITLES.get(language, ())
    return is_title and not (word.casefold() in _BEFORE_NUMBERS and letter.isupper())
