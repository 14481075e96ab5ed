"""Forms of days, times of day, intervals and relative times in CLDR.

Forms do not depend on the current time or on a time zone. Years are from 1950 to 2049, so that they are determined by
their last two digits.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

from babel import Locale, dates

from headway.data.builtin.form import ValueForm, WriteFunction, babel_writer

_FIRST_DAY, _DAYS = datetime(1950, 1, 1), 36_525
_DATE_SKELETONS = ("yMMMEd", "yMMMd", "yMMMM", "yMd", "MMMMd", "MMMd", "MMMEd", "yMEd", "yQQQQ", "GyMMMd")


def _moment(rng: Random) -> datetime:
    """Draw a random date and time, to the second, between 1950 and 2049."""
    return _FIRST_DAY + timedelta(days=rng.randrange(_DAYS), seconds=rng.randrange(86_400))


def _write_skeleton(skeleton: str, locale: Locale, moment: datetime) -> str:
    return dates.format_skeleton(_clock(skeleton, locale), moment, locale=locale)


def _clock(skeleton: str, locale: Locale) -> str:
    """Replace CLDR's "j" with the hour field that the locale prefers: "h" (1-12 with a day period) or "H" (0-23)."""
    pattern = re.sub("'[^']*'", "", dates.get_time_format("short", locale=locale).pattern)
    return skeleton.replace("j", "h" if re.search("[hKabB]", pattern) else "H")


def _write_datetime(style: Any, write_date: WriteFunction, time_style: Any, locale: Locale, moment: datetime) -> str:
    """Join a date and a time with the locale's pattern for this style."""
    joint = str(dates.get_datetime_format(style, locale=locale)).replace("'", "")
    time = dates.format_time(moment, time_style, locale=locale)
    return joint.replace("{0}", time).replace("{1}", write_date(locale, moment))


def date_forms() -> list[ValueForm]:
    """Return forms of days, months and quarters, such as "Tuesday, March 4, 2025" and "Dienstag, 4. März 2025"."""
    writers: list[WriteFunction] = [
        *(babel_writer(dates.format_date, style) for style in ("full", "long", "short")),
        *(partial(_write_skeleton, skeleton) for skeleton in _DATE_SKELETONS),
        # This comes last, because in English "medium" equals yMMMd, and the earlier of two conflicting forms is kept.
        babel_writer(dates.format_date, "medium"),
    ]
    return [ValueForm(write, _moment) for write in writers]


def time_forms() -> list[ValueForm]:
    """Return forms of times of day, such as "3:45 PM" and its translation "15:45", or with a day period, "3:45 in the
    afternoon" and "3:45 nachm.".
    """
    hours = tuple(_FIRST_DAY + timedelta(hours=hour) for hour in range(24))
    return [
        *(ValueForm(babel_writer(dates.format_time, style), _moment) for style in ("short", "medium")),
        ValueForm(partial(_write_skeleton, "Bhm"), _moment),
        ValueForm(partial(_write_skeleton, "j"), train_only_values=hours),  # 24 values are too few for a held-out set
    ]


def datetime_forms() -> list[ValueForm]:
    """Return forms of days with times, such as "Tue, Mar 4, 2025, 3:45 PM" and "Di., 4. März 2025, 15:45"."""
    writers: dict[str, WriteFunction] = {style: babel_writer(dates.format_date, style) for style in ("full", "long")}
    writers |= {"medium": partial(_write_skeleton, "yMMMEd"), "short": babel_writer(dates.format_date, "short")}
    joint = [
        partial(_write_datetime, *style_and_writer, time)
        for style_and_writer in writers.items()
        for time in ("short", "medium")
    ]
    return [ValueForm(write, _moment) for write in (*joint, partial(_write_skeleton, "Ejm"))]


def interval_forms() -> list[ValueForm]:
    """Return forms of intervals, such as "Mar 4 – 9, 2025" and "4.–9. März 2025".

    Parts of the date that are the same at both ends, such as the year, are written only once.
    """

    def write(skeleton: str, locale: Locale, span: tuple[datetime, datetime]) -> str:
        return dates.format_interval(*span, _clock(skeleton, locale), locale=locale)

    spans = {_span: ("yMMMd", "yMMMEd", "yMMMM"), _span_in_year: ("MMMd", "MMMEd"), _span_in_day: ("jm", "j")}
    return [ValueForm(partial(write, skeleton), draw) for draw, skeletons in spans.items() for skeleton in skeletons]


def _span(rng: Random) -> tuple[datetime, datetime]:
    """Draw two days, often in the same month or year."""
    if rng.random() < 0.75:
        return _span_in_year(rng)
    start = _moment(rng)
    return start, start + timedelta(days=rng.randint(366, 2000))


def _span_in_year(rng: Random) -> tuple[datetime, datetime]:
    start = _moment(rng).replace(day=rng.randint(1, 27))
    if rng.random() < 0.5 or start.month == 12:
        return start, start.replace(day=rng.randint(start.day + 1, 28))
    return start, start.replace(month=rng.randint(start.month + 1, 12), day=rng.randint(1, 28))


def _span_in_day(rng: Random) -> tuple[datetime, datetime]:
    first, last = sorted(rng.sample(range(24 * 12), 2))
    return _FIRST_DAY + timedelta(minutes=5 * first), _FIRST_DAY + timedelta(minutes=5 * last)


def relative_forms() -> list[ValueForm]:
    """Return forms of relative times, such as "in 3 days" and its translation "in 3 Tagen", or "3 days ago" and "vor 3
    Tagen".
    """
    seconds = dict(dates.TIMEDELTA_UNITS)

    def write(unit: str, style: Any, sign: int, locale: Locale, count: int) -> str:
        later, earlier = (
            dates.format_timedelta(
                timedelta(seconds=direction * count * seconds[unit]),
                granularity=unit,  # type: ignore[arg-type]
                threshold=10**9,  # never switches to a larger unit
                add_direction=True,
                format=style,
                locale=locale,
            )
            for direction in (sign, -sign)
        )
        if later == earlier:
            raise LookupError("this locale does not distinguish the direction in this style")
        return later

    def count(rng: Random) -> int:
        return rng.randint(3, rng.choice((12, 60, 300)))

    return [
        ValueForm(partial(write, unit, style, sign), count, (1, 2))
        for style in ("long", "short", "narrow")
        for sign in (1, -1)
        for unit in seconds
    ]
