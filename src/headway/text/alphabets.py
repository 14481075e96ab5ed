"""The alphabets of languages, with which ``headway export --keep-languages`` selects tokens.

Every alphabet contains the basic Latin letters, which occur in names and loan words, and either additional Latin
letters or the letters of one or more scripts. The letters are the main exemplar characters of the Unicode CLDR.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from headway.config import spelling_hint
from headway.errors import ConfigError
from headway.text.languages import base_language

# Letters of languages in Latin script, in addition to a to z.
_LATIN = {
    "af": "áâèéêëîïôöûü", "az": "çəğıöşü", "bs": "čćđšž", "br": "êñù", "ca": "àçéèíïóòúü", "cs": "áčďéěíňóřšťúůýž",
    "cy": "áàâäéèêëìíîïóòôöùúûüẁẃŵẅýỳŷÿ", "da": "æøå", "de": "äöüß", "en": "", "eo": "ĉĝĥĵŝŭ", "es": "áéíñóúü",
    "et": "äõöšüž", "eu": "ñç", "fi": "äåöšž", "fo": "áðíóúýæø", "fr": "àâæçéèêëïîôœùûüÿ", "fy": "âäéêëïíôöúûü",
    "ga": "áéíóú", "gd": "àèìòù", "gl": "áéíñóúü", "ha": "ɓɗƙƴ", "hr": "čćđšž", "hu": "áéíóöőúüű", "id": "é",
    "is": "áðéíóúýþæö", "it": "àéèìíîóòùú", "la": "āēīōū", "lb": "äëé", "lt": "ąčęėįšųūž", "lv": "āčēģīķļņšūž",
    "ms": "", "mt": "àċèġħìòùż", "nb": "àéóòôæøå", "nl": "áäéëíïóöúü", "nn": "àéóòôæøå", "oc": "áàçéèíïóòúü",
    "pl": "ąćęłńóśźż", "pt": "áàâãçéêíóôõú", "ro": "ăâîșşțţ", "sk": "áäčďéíĺľňóôŕšťúýž", "sl": "čšž", "so": "",
    "sq": "çë", "sv": "àéåäö", "sw": "", "tl": "ñ", "tr": "çğıöşüâîû",
    "vi": "àảãáạăằẳẵắặâầẩẫấậđèẻẽéẹêềểễếệìỉĩíịòỏõóọôồổỗốộơờởỡớợùủũúụưừửữứựỳỷỹýỵ", "wo": "àéëñŋó", "xh": "",
    "yo": "áàéèẹíìóòọṣúù", "zu": "",
}  # fmt: skip
# Scripts of other languages: the first words of the Unicode names of their characters.
_SCRIPTS = {
    "am": "ETHIOPIC", "ar": "ARABIC", "as": "BENGALI", "be": "CYRILLIC", "bg": "CYRILLIC", "bn": "BENGALI",
    "dv": "THAANA", "el": "GREEK", "fa": "ARABIC", "gu": "GUJARATI", "he": "HEBREW", "hi": "DEVANAGARI",
    "hy": "ARMENIAN", "ja": "HIRAGANA KATAKANA KATAKANA-HIRAGANA CJK IDEOGRAPHIC", "ka": "GEORGIAN", "kk": "CYRILLIC",
    "km": "KHMER", "kn": "KANNADA", "ko": "HANGUL CJK", "ky": "CYRILLIC", "lo": "LAO", "mk": "CYRILLIC",
    "ml": "MALAYALAM", "mn": "CYRILLIC", "mr": "DEVANAGARI", "my": "MYANMAR", "ne": "DEVANAGARI", "or": "ORIYA",
    "pa": "GURMUKHI", "ps": "ARABIC", "ru": "CYRILLIC", "sa": "DEVANAGARI", "sd": "ARABIC", "si": "SINHALA",
    "sr": "CYRILLIC", "ta": "TAMIL", "te": "TELUGU", "tg": "CYRILLIC", "th": "THAI", "ti": "ETHIOPIC",
    "tt": "CYRILLIC", "ug": "ARABIC", "uk": "CYRILLIC", "ur": "ARABIC", "yi": "HEBREW",
    "zh": "CJK BOPOMOFO IDEOGRAPHIC",
}  # fmt: skip
_BASIC = frozenset("abcdefghijklmnopqrstuvwxyz")
_LETTERS_AND_MARKS = ("L", "M")  # Unicode categories; digits, punctuation and symbols belong to all languages


def alphabet_predicate(languages: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate: whether all characters of a text belong to one of these languages.

    Digits, punctuation and symbols belong to all languages. A language code may include a region or script, such as
    de-AT.

    Raises:
        ConfigError: The letters of a language are unknown.
    """
    letters, scripts = set(_BASIC), set[str]()
    for code in languages:
        language = base_language(code)
        if language in _LATIN:
            letters |= set(_LATIN[language])
        elif language in _SCRIPTS:
            scripts |= set(_SCRIPTS[language].split())
        else:
            known = sorted({*_LATIN, *_SCRIPTS})
            raise ConfigError(
                f"the letters of the language {code!r} are unknown ({spelling_hint(code, known)}); provide texts in "
                "this language instead (--keep-text)"
            )

    @cache
    def belongs(character: str) -> bool:
        if not unicodedata.category(character).startswith(_LETTERS_AND_MARKS):
            return True
        folded = unicodedata.normalize("NFKC", character).lower()
        if set(folded) <= letters:
            return True
        return bool(scripts) and unicodedata.name(character, "").partition(" ")[0] in scripts

    return lambda text: all(map(belongs, text))
