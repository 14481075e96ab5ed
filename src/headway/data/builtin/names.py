"""Forms of names of countries, languages, months and weekdays in CLDR, and of lists of names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from babel import Locale, lists

from headway.data.builtin.form import Form

_COUNTRIES = """
    AL AR AT AU BD BE BG BO BR CA CH CL CN CO CR CU CY CZ DE DK EC EE EG ES ET FI FR GB GE GH GR HR HU ID IE IL
    IN IQ IR IS IT JM JO JP KE KR KZ LB LT LU LV MA MG MT MX MY NG NL NO NP NZ PE PH PK PL PT PY RO RS SA SE SI
    SK SN SY TH TN TR TZ UA UG US UY VE VN ZA ZM
"""
_LANGUAGES = """
    ar bg bn ca cs cy da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka ko la lt lv mk ms nl pl
    pt ro ru sk sl sq sr sv sw ta th tr uk ur vi zh
"""
_NO_COUNTRIES = {"EU", "EZ", "UN", "XA", "XB", "ZZ"}  # listed among the territories in CLDR
_POOLS: dict[str, tuple[Any, ...]] = {
    "territories": tuple(_COUNTRIES.split()),
    "languages": tuple(_LANGUAGES.split()),
    "days": tuple(range(7)),
    "months": tuple(range(1, 13)),
}


def _write_name(kind: str, locale: Locale, code: Any) -> str:
    names = getattr(locale, kind)
    return str((names["stand-alone"]["wide"] if kind in ("days", "months") else names)[code])


def list_forms() -> list[Form]:
    """Lists of names: "Poland, Japan, and Mexico" - "Polen, Japan und Mexiko"."""

    def write(style: Any, locale: Locale, value: tuple[str, list[Any]]) -> str:
        kind, codes = value
        return lists.format_list([_write_name(kind, locale, code) for code in codes], style, locale)

    def names(rng: Random) -> tuple[str, list[Any]]:
        kind = rng.choices(tuple(_POOLS), (5, 3, 1, 1))[0]
        return kind, rng.sample(_POOLS[kind], rng.randint(2, 4))

    return [Form(partial(write, style), names) for style in ("standard", "or")]


def name_forms() -> list[Form]:
    """Single names, all in the training set, and regional languages: "German (Austria)" - "Deutsch (Österreich)"."""

    def write(locale: Locale, value: tuple[str, str]) -> str:
        language, territory = value
        return f"{_write_name('languages', locale, language)} ({_write_name('territories', locale, territory)})"

    def variety(rng: Random) -> tuple[str, str]:
        return rng.choice(_POOLS["languages"]), rng.choice(_POOLS["territories"])

    alone = [Form(partial(_write_name, kind), anchors=codes) for kind, codes in _POOLS.items()]
    return [*alone, Form(write, variety)]


def unseen_names(source: Locale, target: Locale) -> list[tuple[Callable[[Locale, Any], str], str]]:
    """Return names of countries and languages that occur in no form, so that they cannot be inferred.

    Each is a function that writes it, and its code.
    """
    return [
        (partial(_write_name, kind), code)
        for kind in ("territories", "languages")
        for code in sorted(set(getattr(source, kind)) & set(getattr(target, kind)))
        if len(code) == 2 and code.isalpha() and code not in _POOLS[kind] and code not in _NO_COUNTRIES
    ]
