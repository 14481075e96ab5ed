"""Forms of names of countries, languages, months and weekdays in CLDR, and of lists of names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from babel import Locale, lists

from headway.data.builtin.form import ValueForm

_COUNTRIES = """
    AL AR AT AU BD BE BG BO BR CA CH CL CN CO CR CU CY CZ DE DK EC EE EG ES ET FI FR GB GE GH GR HR HU ID IE IL
    IN IQ IR IS IT JM JO JP KE KR KZ LB LT LU LV MA MG MT MX MY NG NL NO NP NZ PE PH PK PL PT PY RO RS SA SE SI
    SK SN SY TH TN TR TZ UA UG US UY VE VN ZA ZM
"""
_LANGUAGES = """
    ar bg bn ca cs cy da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka ko la lt lv mk ms nl pl
    pt ro ru sk sl sq sr sv sw ta th tr uk ur vi zh
"""
_NO_COUNTRIES = {"EU", "EZ", "UN", "XA", "XB", "ZZ"}  # codes in CLDR's list of territories that are not countries
_POOLS: dict[str, tuple[Any, ...]] = {
    "territories": tuple(_COUNTRIES.split()),
    "languages": tuple(_LANGUAGES.split()),
    "days": tuple(range(7)),
    "months": tuple(range(1, 13)),
}


def _write_name(kind: str, locale: Locale, code: Any) -> str:
    names = getattr(locale, kind)
    return str((names["stand-alone"]["wide"] if kind in ("days", "months") else names)[code])


def list_forms() -> list[ValueForm]:
    """Return forms of lists of names, such as "Poland, Japan, and Mexico" and "Polen, Japan und Mexiko"."""

    def write(style: Any, locale: Locale, value: tuple[str, list[Any]]) -> str:
        kind, codes = value
        return lists.format_list([_write_name(kind, locale, code) for code in codes], style, locale)

    def names(rng: Random) -> tuple[str, list[Any]]:
        kind = rng.choices(tuple(_POOLS), (5, 3, 1, 1))[0]
        return kind, rng.sample(_POOLS[kind], rng.randint(2, 4))

    return [ValueForm(partial(write, style), names) for style in ("standard", "or")]


def name_forms() -> list[ValueForm]:
    """Return forms of single names, which are all in the training set, and of regional languages, such as "German
    (Austria)" and "Deutsch (Österreich)".
    """

    def write(locale: Locale, value: tuple[str, str]) -> str:
        language, territory = value
        return f"{_write_name('languages', locale, language)} ({_write_name('territories', locale, territory)})"

    def variety(rng: Random) -> tuple[str, str]:
        return rng.choice(_POOLS["languages"]), rng.choice(_POOLS["territories"])

    alone = [ValueForm(partial(_write_name, kind), train_only_values=codes) for kind, codes in _POOLS.items()]
    return [*alone, ValueForm(write, variety)]


def unseen_names(source_locale: Locale, target_locale: Locale) -> list[tuple[Callable[[Locale, Any], str], str]]:
    """Return the countries and languages that no form uses.

    A model cannot infer their translations from the training data. Each item is a pair of a function that writes the
    name and the CLDR code.
    """
    return [
        (partial(_write_name, kind), code)
        for kind in ("territories", "languages")
        for code in sorted(set(getattr(source_locale, kind)) & set(getattr(target_locale, kind)))
        if len(code) == 2 and code.isalpha() and code not in _POOLS[kind] and code not in _NO_COUNTRIES
    ]
