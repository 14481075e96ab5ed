"""Forms of numbers, percentages, money, abbreviated large numbers, and measures in CLDR."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

from babel import Locale, lists, numbers, units

from headway.data.builtin.form import ValueForm, WriteFunction, babel_writer

_ONE_AND_TWO = (Decimal(1), Decimal(2))  # singular and dual
_CURRENCIES = "AUD BRL CAD CHF CNY CZK DKK EUR GBP INR JPY KRW MXN NOK PLN SEK TRY USD ZAR"


def _digits(rng: Random, min_digits: int, max_digits: int) -> int:
    """Draw an integer with ``min_digits`` to ``max_digits`` digits; all lengths are equally likely."""
    length = rng.randint(min_digits, max_digits)
    return rng.randrange(10 ** (length - 1), 10**length)


def _number(rng: Random, least: int, most: int, decimals: int, negative: float = 0.0) -> Decimal:
    """Draw a number with ``least`` to ``most`` digits before the decimal point and up to ``decimals`` after it; never 1
    or 2.
    """
    places = rng.randint(0, decimals)
    whole = _digits(rng, least, most)
    if places == 0:
        return Decimal(max(whole, 3)) * (-1 if rng.random() < negative else 1)
    fraction = 10 * rng.randrange(10 ** (places - 1)) + rng.randint(1, 9)  # the last digit is not 0
    value = Decimal(whole) + Decimal(fraction).scaleb(-places)
    return -value if rng.random() < negative else value


def decimal_forms() -> list[ValueForm]:
    """Return forms of grouped numbers, such as "-12,345.67", and of powers of ten, such as "1.25E7"."""

    write = babel_writer(numbers.format_decimal, decimal_quantization=False)
    write_scientific = babel_writer(numbers.format_scientific, decimal_quantization=False)
    return [
        ValueForm(write, lambda rng: _number(rng, 4, 6, 2, negative=0.1)),
        ValueForm(write, lambda rng: _number(rng, 1, 6, 3, negative=0.1)),
        ValueForm(write_scientific, lambda rng: _number(rng, 1, 1, 2).scaleb(rng.randint(3, 12))),
    ]


def percentage_forms() -> list[ValueForm]:
    """Return forms of percentages and permilles, such as "12.5 percent" and its translation "12,5 Prozent"."""

    part = partial(_number, least=1, most=3, decimals=2, negative=0.1)
    units = (("concentr-percent", "long"), ("concentr-permille", "short"), ("concentr-permille", "long"))
    writers: list[WriteFunction] = [
        _scaled(-2, babel_writer(numbers.format_percent, decimal_quantization=False)),
        *(partial(_write_unit, *unit) for unit in units),
    ]
    return [ValueForm(write, part, _ONE_AND_TWO) for write in writers]


def _scaled(exponent: int, write: WriteFunction) -> WriteFunction:
    """Return a function that writes a value times 10^exponent."""
    return lambda locale, value: write(locale, value.scaleb(exponent))


def currency_forms() -> list[ValueForm]:
    """Return forms of amounts of money, such as "3.00 US dollars" and its translation "3,00 US-Dollar"."""

    def amount(rng: Random) -> Decimal:
        cents = rng.choice((0, 0, 50, 95, 99, rng.randrange(100)))
        value = max(_digits(rng, 1, 5), 3) + Decimal(cents).scaleb(-2)
        return -value if rng.random() < 0.08 else value

    def whole(rng: Random) -> Decimal:
        return Decimal(max(_digits(rng, 1, 6), 3))

    return [
        ValueForm(
            babel_writer(numbers.format_currency, currency, format_type=style),
            amount if numbers.get_currency_precision(currency) else whole,
            _ONE_AND_TWO,
        )
        for style in ("standard", "name")
        for currency in _CURRENCIES.split()
    ]


def compact_forms() -> list[ValueForm]:
    """Return forms of abbreviated large numbers, such as "12.3 million" and its translation "12,3 Millionen".

    The numbers have at most three significant digits, so that no language rounds a number that another language writes
    in full.
    """

    def short(rng: Random) -> Decimal:
        whole = Decimal(max(_digits(rng, 1, 3), 3))
        return whole if whole >= 100 or rng.random() < 0.4 else whole + Decimal(rng.randint(1, 9)).scaleb(-1)

    writers = [
        _scaled(exponent, babel_writer(numbers.format_compact_decimal, format_type=style, fraction_digits=2))
        for style, exponents in (("short", (6, 9, 12)), ("long", (3, 6, 9, 12)))
        for exponent in exponents
    ]
    writers += [
        _scaled(exponent, babel_writer(numbers.format_compact_currency, currency, fraction_digits=2))
        for currency in ("USD", "EUR", "GBP", "JPY")
        for exponent in (6, 9)
    ]
    return [ValueForm(write, short, _ONE_AND_TWO) for write in writers]


_UNITS: dict[str, str] = {
    "length": "kilometer meter centimeter millimeter mile foot inch",
    "mass": "kilogram gram pound ounce",
    "volume": "liter milliliter gallon cubic-meter",
    "area": "square-meter square-kilometer hectare acre",
    "angle": "degree",  # before "temperature", because in English, a narrow degree Fahrenheit looks like an angle
    "temperature": "celsius fahrenheit",
    "speed": "kilometer-per-hour mile-per-hour meter-per-second",
    "duration": "year month week day hour minute second",
    "digital": "megabyte gigabyte",
    "energy": "kilowatt-hour",
    "power": "watt",
    "pressure": "hectopascal",
    "frequency": "hertz",
}
_RATES = (
    ("volume-liter", "duration-minute"),
    ("mass-kilogram", "duration-day"),
    ("mass-gram", "volume-liter"),
    ("digital-megabyte", "duration-second"),
    ("length-meter", "duration-day"),
)
_MIXED = (
    ("duration-day", "duration-hour"),
    ("duration-hour", "duration-minute"),
    ("duration-minute", "duration-second"),
    ("mass-kilogram", "mass-gram"),
)


def _write_unit(unit: str, length: Any, locale: Locale, value: Decimal) -> str:
    text = units.format_unit(value, unit, length, locale=locale)
    if unit in text:
        raise LookupError("Babel writes the unit's identifier if a locale has no pattern")
    return text


def measure_forms() -> list[ValueForm]:
    """Return forms of quantities, such as "12.5 kilometers", "12.5 km", "3 liters per minute" or "5 hours, 20 min"."""

    def write_rate(unit: str, per: str, length: Any, locale: Locale, value: Decimal) -> str:
        text = units.format_compound_unit(value, unit, denominator_unit=per, length=length, locale=locale)
        if text is None or unit in text or per in text:
            raise LookupError("this locale has no pattern for the rate")
        return text

    def write_mixed(
        unit: str, smaller: str, length: Any, style: Any, locale: Locale, value: tuple[Decimal, ...]
    ) -> str:
        parts = [_write_unit(name, length, locale, part) for name, part in zip((unit, smaller), value, strict=True)]
        return lists.format_list(parts, style, locale)

    def amount(rng: Random) -> Decimal:
        return _number(rng, 1, 4, 0) if rng.random() < 0.6 else _number(rng, 1, 2, 1)

    def two_amounts(rng: Random) -> tuple[Decimal, ...]:
        return Decimal(rng.randint(1, 30)), Decimal(rng.randint(1, 59))

    writers: list[WriteFunction] = [
        partial(_write_unit, f"{kind}-{unit}", length)
        for length in ("long", "short", "narrow")
        for kind, names in _UNITS.items()
        for unit in names.split()
    ]
    writers += [partial(write_rate, *rate, length) for length in ("long", "short") for rate in _RATES]
    mixed = [
        ValueForm(partial(write_mixed, *pair, length, style), two_amounts)
        for length, style in (("long", "unit"), ("short", "unit-short"))
        for pair in _MIXED
    ]
    return [ValueForm(write, amount, _ONE_AND_TWO) for write in writers] + mixed
