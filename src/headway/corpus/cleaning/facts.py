"""Parts of a text that a translation must not change: numbers, URLs, e-mail addresses, and placeholders.

Only the digits of numbers are compared, because separators depend on the language (1,234.5 and 1.234,5). They are
compared in two ways, and the smaller number of differences counts: by groups of digits after thousands separators are
removed, and by all digits of each number. Afternoon hours have two forms (8 p.m. and 20 Uhr). Numbers are compared only
if both sides have digits: "acht Uhr" and "8 o'clock" are a correct pair. A number without a counterpart counts as an
error only if the other side also has a number without a counterpart.
"""

from __future__ import annotations

import re
from collections import Counter

_MARKED = re.compile(
    r"(?P<url>(?:https?|ftp)://[^\s<>\"]+|www\.[^\s<>\"]+)"
    r"|(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<placeholder>\{\{[^{}]*\}\}|\$?\{\w*\}|(?<![\d%])%(?:\(\w+\)|\d+\$)?[sdif@](?!\w))",
)
_HINTS = re.compile(r"[@{%/]|www")  # every address and every placeholder contains one of these
_URL_END = ".,;:!?)]}'’”»"
_THOUSANDS = re.compile("(?<=\\d)[.,'’\u00a0\u202f ](?=\\d{3}(?!\\d))")
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile("\\d+(?:[.,:'’\u00a0\u202f]\\d+)*")
_AFTERNOON = re.compile(r"\b(?:[ap]\.?\s?m\b|uhr\b)|\dh", re.IGNORECASE)
_HALF_DAY = 12


def count_fact_differences(source: str, target: str) -> int | None:
    """Count numbers, addresses and placeholders without a counterpart. None means that nothing can be compared."""
    differences, can_be_compared = 0, False
    if _HINTS.search(source) or _HINTS.search(target):
        source, kept = _without_marked(source)
        target, others = _without_marked(target)
        if kept or others:
            can_be_compared = True
            differences += max(sum((kept - others).values()), sum((others - kept).values()))
    if _DIGITS.search(source) and _DIGITS.search(target):
        can_be_compared = True
        if source != target:
            differences += _number_differences(source, target)
    return differences if can_be_compared else None


def _without_marked(text: str) -> tuple[str, Counter[str]]:
    """Return a text without its addresses and placeholders, and a count of each removed address and placeholder."""
    marked = Counter[str]()
    for match in _MARKED.finditer(text):
        marked[match[0].rstrip(_URL_END).lower() if match["url"] else match[0]] += 1
    return (_MARKED.sub(" ", text), marked) if marked else (text, marked)


def _number_differences(source: str, target: str) -> int:
    ours, theirs = _groups(source), _groups(target)
    rest, others = ours - theirs, theirs - ours
    if not rest or not others:
        return 0
    if _AFTERNOON.search(source) or _AFTERNOON.search(target):
        for number in list(rest):
            for other in (_shifted(number, _HALF_DAY), _shifted(number, -_HALF_DAY)):
                if other in others:
                    common = min(rest[number], others[other])
                    rest[number] -= common
                    others[other] -= common
    by_groups = min(sum(rest.values()), sum(others.values()))
    if not by_groups:
        return 0
    ours, theirs = _joined(source), _joined(target)
    return min(by_groups, sum((ours - theirs).values()), sum((theirs - ours).values()))


def _groups(text: str) -> Counter[str]:
    return Counter(map(_canonical, _DIGITS.findall(_THOUSANDS.sub("", text))))


def _joined(text: str) -> Counter[str]:
    return Counter(_canonical("".join(_DIGITS.findall(number))) for number in _NUMBER.findall(text))


def _canonical(digits: str) -> str:
    """Return digits in any script as ASCII digits, without leading zeros."""
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    return digits.lstrip("0") or "0"


def _shifted(number: str, by: int) -> str:
    return str(int(number) + by) if len(number) <= 2 else ""
