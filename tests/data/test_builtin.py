"""The built-in corpus: solvable tasks, disjoint splits, and texts that agree with CLDR for each language."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from headway.data.builtin import CATEGORIES, BuiltinCorpus, LocalizedPair, build_corpus, write_corpus
from headway.errors import ConfigError, OutputError

SPLITS = ("train", "dev", "test")


@cache
def corpus(source: str = "en", target: str = "de", size: int = 8000) -> BuiltinCorpus:
    return build_corpus(source, target, size=size)


def pairs(built: BuiltinCorpus) -> list[LocalizedPair]:
    return [*built.train, *built.dev, *built.test]


def look(text: str) -> str:
    """Return a text as a reader sees it, who cannot distinguish narrow and wide spaces."""
    return " ".join(text.split())


@pytest.mark.slow
def test_same_seed_same_corpus_other_seed_other_corpus() -> None:
    assert build_corpus(size=1500) == corpus(size=1500)
    assert build_corpus(size=1500, seed=2).train != corpus(size=1500).train


def test_sizes_and_categories() -> None:
    built = corpus()
    assert len(built.train) == 8000
    assert len(built.dev) == 500
    held_out = Counter(pair.category for pair in built.test if pair.inferable)
    assert held_out == dict.fromkeys(CATEGORIES, 110)
    assert min(Counter(pair.category for pair in built.train).values()) >= 300
    assert set(CATEGORIES) == {pair.category for pair in built.dev} == {pair.category for pair in built.train}


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    ("source", "target"), [("en", "de"), ("de", "en"), ("en", "fr"), ("ja", "en"), ("pt-BR", "ru")]
)
def test_every_source_has_one_target_and_is_in_one_place(source: str, target: str) -> None:
    built = corpus(source, target, 1500)
    sources = Counter(look(pair.source) for pair in pairs(built))
    assert max(sources.values()) == 1  # so no source is ambiguous, and no held-out text is in the training set
    for pair in pairs(built):
        for text in (pair.source, pair.target):
            assert text == text.strip()
            assert len(text.splitlines()) == 1
    assert Counter(pair.category for pair in built.test).keys() == set(CATEGORIES)


def test_form_whose_source_does_not_determine_the_target_is_left_out() -> None:
    # English writes "Mar 4, 2025" both for German "4. März 2025" (skeleton yMMMd) and for "04.03.2025" (style medium).
    by_name = [pair for pair in pairs(corpus()) if pair.category == "dates" and pair.source[:3].isalpha()]
    assert by_name
    assert not any(pair.target[:10].replace(".", "").isdigit() for pair in by_name)


def test_names_that_training_never_shows_are_marked() -> None:
    built = corpus()
    unseen = [pair for pair in built.test if not pair.inferable]
    assert len(unseen) == 60
    assert {pair.category for pair in unseen} == {"names"}
    assert all(pair.inferable for pair in (*built.train, *built.dev))
    alone = {pair.source for pair in built.train if pair.category == "names"}
    assert not alone & {pair.source for pair in unseen}
    # Every language and country of a held-out phrase also occurs on its own in the training set.
    phrases = [pair.source for pair in built.test if pair.category == "names" and pair.inferable]
    assert {part.rstrip(")") for phrase in phrases for part in phrase.split(" (")} <= alone


# From the CLDR charts of English and German.
KNOWN = {
    "Monday": "Montag",
    "Austria": "Österreich",
    "Swedish": "Schwedisch",
    "in 1 day": "in 1 Tag",
    "in 2 days": "in 2 Tagen",
    "2 months ago": "vor 2 Monaten",
    "1 kilometer": "1 Kilometer",
    "1 million": "1 Million",
    "2 million": "2 Millionen",
    "€1.00": "1,00\xa0€",
    "1 percent": "1 Prozent",
    "1%": "1\xa0%",
}


def test_known_translations_that_are_always_in_training() -> None:
    trained = {pair.source: pair.target for pair in corpus().train}
    assert {source: trained.get(source) for source in KNOWN} == KNOWN


MONTHS = {
    "January": "Januar",
    "February": "Februar",
    "March": "März",
    "April": "April",
    "May": "Mai",
    "June": "Juni",
    "July": "Juli",
    "August": "August",
    "September": "September",
    "October": "Oktober",
    "November": "November",
    "December": "Dezember",
}
DAYS = {
    "Monday": "Montag",
    "Tuesday": "Dienstag",
    "Wednesday": "Mittwoch",
    "Thursday": "Donnerstag",
    "Friday": "Freitag",
    "Saturday": "Samstag",
    "Sunday": "Sonntag",
}


def test_full_dates_follow_both_languages_order() -> None:
    """ "Tuesday, March 4, 2025" is "Dienstag, 4. März 2025"."""
    full = [pair for pair in pairs(corpus()) if pair.category == "dates" and pair.source.split(",")[0] in DAYS]
    assert len(full) > 30
    for pair in full:
        weekday, month_and_day, year = pair.source.split(", ")
        month, day = month_and_day.split(" ")
        assert pair.target == f"{DAYS[weekday]}, {day}. {MONTHS[month]} {year}"


def test_relative_days_inflect() -> None:
    """ "in 3 days" is "in 3 Tagen", "3 days ago" is "vor 3 Tagen"."""
    relative = [pair for pair in pairs(corpus()) if pair.category == "relative" and " days" in pair.source]
    assert len(relative) > 10
    for pair in relative:
        count = next(word for word in pair.source.split() if word.isdigit())
        assert (pair.source, pair.target) in {
            (f"in {count} days", f"in {count} Tagen"),
            (f"{count} days ago", f"vor {count} Tagen"),
        }


def test_times_change_from_twelve_hours_to_twenty_four() -> None:
    times = [pair for pair in pairs(corpus()) if pair.category == "times" and pair.source.endswith("\u202fPM")]
    assert len(times) > 50
    for pair in times:
        hour, rest = pair.source.removesuffix("\u202fPM").split(":", 1)
        assert pair.target == f"{int(hour) % 12 + 12}:{rest}"


def test_decimals_exchange_point_and_comma() -> None:
    decimals = [pair for pair in pairs(corpus()) if pair.category == "decimals"]
    assert all(pair.target == pair.source.translate(str.maketrans(",.", ".,")) for pair in decimals)


def test_no_unit_identifier_where_a_language_lacks_a_pattern() -> None:
    assert not any(
        name in pair.target for pair in pairs(corpus()) for name in ("length-", "area-", "speed-", "volume-")
    )


def test_progress_counts_the_pairs_of_one_category_after_the_other() -> None:
    calls: list[tuple[str, int]] = []
    built = build_corpus(size=600, progress=lambda *call: calls.append(call))
    assert list(dict.fromkeys(category for category, _ in calls)) == list(CATEGORIES)
    done = [count for _, count in calls]
    assert done == sorted(done)
    assert done[-1] >= sum(pair.inferable for part in (built.train, built.dev, built.test) for pair in part)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("german", "en", "unknown language 'german'; did you mean 'de'?"),
        ("en", "pt_BX", r"did you mean 'pt_\w+'\?"),
        ("en", "", "unknown language ''; known: de, en, es"),
        ("en", "../x", "accepted: the [0-9]+ Unicode CLDR locales"),
        ("en", "en", "both 'en'; expected two different languages"),
        ("zh-Hant", "zh_Hant", "expected two different languages"),
    ],
)
def test_wrong_languages(source: str, target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_corpus(source, target, size=100)


def test_wrong_size() -> None:
    with pytest.raises(ConfigError, match="size = 0: expected at least 1"):
        build_corpus(size=0)


def test_written_files_hold_the_corpus(tmp_path: Path) -> None:
    built = corpus()
    folder = tmp_path / "new" / "folder"
    write_corpus(built, folder, "en", "de")
    names = {f"{split}.{language}" for split in SPLITS for language in ("en", "de")}
    assert {path.name for path in folder.iterdir()} == names | {"test.categories"}
    for split in SPLITS:
        expected = getattr(built, split)
        for language, side in (("en", "source"), ("de", "target")):
            text = (folder / f"{split}.{language}").read_bytes().decode()
            assert text.split("\n") == [*(getattr(pair, side) for pair in expected), ""]
    labels = (folder / "test.categories").read_text(encoding="utf-8").splitlines()
    assert len(labels) == len(built.test)
    assert Counter(labels)["names (not inferable)"] == 60
    assert set(labels) == {*CATEGORIES, "names (not inferable)"}


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        write_corpus(corpus(), tmp_path / "file", "en", "de")
