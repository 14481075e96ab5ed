"""Numbers, addresses and placeholders must have partners, in whatever form languages write them."""

from __future__ import annotations

import pytest

from headway.corpus.cleaning.facts import count_fact_differences

EQUAL = [
    ("Es kostet 1.234,50 €.", "It costs €1,234.50."),
    ("Um 8 Uhr.", "At 8 o'clock."),
    ("Um 20.30 Uhr.", "At 8:30 p.m."),
    ("Um 20 Uhr.", "At 8 PM."),
    ("1 000 000 Leute", "1,000,000 people"),
    ("10000 Leute", "10,000 people"),
    ("1,00,000", "100,000"),
    ("Am 5.3.2020", "on 03/05/2020"),
    ("Um 3 Uhr kamen zwei.", "2 came at 3."),
    ("٣ كتب", "3 books"),
    ("Siehe https://example.org/a.", "See https://example.org/a"),
    ("Schreib an a.b@example.org!", "Write to a.b@example.org"),
    ("Hallo {name}, %s, %1$d", "Hello {name}, %s, %1$d"),
]
DIFFERENT = [
    ("Es kostet 12 €.", "It costs €13.", 1),
    ("Ich habe 3 Hunde und 2 Katzen.", "I have 3 dogs and 4 cats.", 1),
    ("Am 5.3.2020", "on 03/06/2020", 1),
    ("Siehe https://example.org/a.", "See https://example.org/b", 1),
    ("Siehe www.example.org", "See there", 1),
    ("Hallo {name}", "Hello {nom}", 1),
    ("100 %s", "100", 1),
]
NOT_COMPARED = [("Um acht Uhr.", "At 8 o'clock."), ("Ja.", "Yes."), ("50 % der Leute", "half"), ("100%ig", "sure")]


@pytest.mark.parametrize(("source", "target"), EQUAL)
def test_equal_facts(source: str, target: str) -> None:
    assert count_fact_differences(source, target) == 0
    assert count_fact_differences(target, source) == 0


@pytest.mark.parametrize(("source", "target", "count"), DIFFERENT)
def test_different_facts_are_counted(source: str, target: str, count: int) -> None:
    assert count_fact_differences(source, target) == count
    assert count_fact_differences(target, source) == count


@pytest.mark.parametrize(("source", "target"), NOT_COMPARED)
def test_numbers_count_only_where_both_sides_have_digits(source: str, target: str) -> None:
    assert count_fact_differences(source, target) is None
