"""Look up languages by the codes that clients use, name languages, and detect the language of a text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from headway.text.languages import base_language, normalize_language_code

# Models specify the script of Chinese. Clients often specify a region, or only zh, which means simplified Chinese.
_SCRIPTS = {
    "zh": "zh-hans", "zh-cn": "zh-hans", "zh-sg": "zh-hans", "zh-tw": "zh-hant", "zh-hk": "zh-hant", "zh-mo": "zh-hant",
}  # fmt: skip
# An unsupported language is reported only if it has at least this probability and is at least this many times as
# probable as the supported languages. Sentences of four words reach these values; single words and numbers do not.
_CLEAR, _MUCH_MORE = 0.3, 20
_ENGLISH_NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nb": "Norwegian Bokmål", "nl": "Dutch",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sr": "Serbian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese",
    "zh": "Chinese",
}  # fmt: skip
_NATIVE_NAMES = {
    "ar": "العربية", "bg": "Български", "ca": "Català", "cs": "Čeština", "da": "Dansk", "de": "Deutsch",
    "el": "Ελληνικά", "en": "English", "es": "Español", "et": "Eesti", "fa": "فارسی", "fi": "Suomi", "fr": "Français",
    "he": "עברית", "hi": "हिन्दी", "hr": "Hrvatski", "hu": "Magyar", "id": "Indonesia", "it": "Italiano",
    "ja": "日本語", "ko": "한국어", "lt": "Lietuvių", "lv": "Latviešu", "nb": "Norsk bokmål", "nl": "Nederlands",
    "pl": "Polski", "pt": "Português", "ro": "Română", "ru": "Русский", "sk": "Slovenčina", "sl": "Slovenščina",
    "sr": "Српски", "sv": "Svenska", "th": "ไทย", "tr": "Türkçe", "uk": "Українська", "vi": "Tiếng Việt", "zh": "中文",
}  # fmt: skip
_RIGHT_TO_LEFT = ("ar", "fa", "he", "ur", "yi")


@dataclass(frozen=True)
class DetectedLanguage:
    """The code of a text's language, and the probability that it is correct, from 0 to 1."""

    code: str
    confidence: float


def find_language(code: str, known: Iterable[str]) -> str | None:
    """Return the code in ``known`` that matches ``code``, or None.

    Case is ignored, and ``_`` is the same as ``-``. A region or script in ``code`` that is not in ``known`` is ignored
    (de-AT matches de). A code without a region matches a code with a region if it is the language's only code in
    ``known`` (en matches en-GB).
    """
    wanted = normalize_language_code(code)
    codes = tuple(known)
    by_code = _by_normalized_code(codes)
    for candidate in (wanted, _SCRIPTS.get(wanted, wanted)):
        if candidate in by_code:
            return by_code[candidate]
    language = base_language(code)
    if language in by_code:
        return by_code[language]
    family = _families(codes).get(language, ())
    return family[0] if len(family) == 1 else None


@lru_cache(maxsize=64)
def _by_normalized_code(known: tuple[str, ...]) -> dict[str, str]:
    return {normalize_language_code(code): code for code in known}


@lru_cache(maxsize=64)
def _families(known: tuple[str, ...]) -> dict[str, list[str]]:
    """Group codes by language, so that looking up an unknown code does not compare it with all codes."""
    families: dict[str, list[str]] = {}
    for code in _by_normalized_code(known).values():
        families.setdefault(base_language(code), []).append(code)
    return families


def english_name(code: str) -> str:
    """Return the English name of a language, or its code if the name is unknown."""
    return _ENGLISH_NAMES.get(base_language(code), code)


def native_name(code: str) -> str:
    """Return the name of a language in that language, or its English name if the native name is unknown."""
    return _NATIVE_NAMES.get(base_language(code), english_name(code))


def is_right_to_left(code: str) -> bool:
    """Return whether a language is written from right to left."""
    return base_language(code) in _RIGHT_TO_LEFT


def detect_language(text: str, served: Collection[str] = ()) -> DetectedLanguage:
    """Return the most probable language of a text, among all languages that the detector supports.

    The language of a short text is rarely certain. A language that is not in ``served`` must therefore be clearly more
    probable than the most probable language in ``served``. The confidence is always the probability among all
    languages.
    """
    codes = _codes_by_language(tuple(served))
    ranked = _identifier().rank(text)
    best, probability = ranked[0]
    known = next(((label, value) for label, value in ranked if base_language(label) in codes), None)
    if known is not None and (probability < _CLEAR or probability < _MUCH_MORE * known[1]):
        best, probability = known
    return DetectedLanguage(codes.get(base_language(best), best), float(probability))


@lru_cache(maxsize=16)
def _codes_by_language(served: tuple[str, ...]) -> dict[str, str]:
    """Map each language to its code in ``served``, or to the shortest of several codes."""
    return {base_language(code): code for code in sorted(served, key=len, reverse=True)}


def prepare_detection() -> None:
    """Load the model of :func:`detect_language`, which takes half a second or more."""
    _identifier()


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
