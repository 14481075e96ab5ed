"""Build the built-in corpus: draw values, write them in two languages, drop ambiguous pairs, and split the rest.

The source of each pair must determine its target. Two checks ensure this. Both treat all kinds of spaces as equal (a
narrow space looks like a plain one):

1. All forms of a category write the same probe values. A form is dropped if an earlier form writes the same source with
   a different translation: English "Mar 4, 2025" would be German "4. März 2025" in one form and "04.03.2025" in the
   other. Forms that do not exist in a locale are also dropped.
2. Sources that still have two translations, even in different categories, are dropped.

Held-out sources never occur in the training set. The translations of names that are not in the training set cannot be
inferred. Such names occur only in the test set, are marked ``inferable=False``, and are reported separately.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

from babel import Locale, UnknownLocaleError, localedata

from headway.config import spelling_hint
from headway.data.builtin.form import ValueForm, WriteFunction
from headway.data.builtin.moments import date_forms, datetime_forms, interval_forms, relative_forms, time_forms
from headway.data.builtin.names import list_forms, name_forms, unseen_names
from headway.data.builtin.quantities import (
    compact_forms,
    currency_forms,
    decimal_forms,
    measure_forms,
    percentage_forms,
)
from headway.errors import ConfigError
from headway.storage import atomic_write_text

# Each category with its share of the corpus (harder categories have larger shares) and the function that returns its
# forms.
_FORMS: dict[str, tuple[int, Callable[[], list[ValueForm]]]] = {
    "dates": (6, date_forms),
    "times": (3, time_forms),
    "datetimes": (7, datetime_forms),
    "intervals": (7, interval_forms),
    "relative": (3, relative_forms),
    "measures": (5, measure_forms),
    "currencies": (4, currency_forms),
    "percentages": (2, percentage_forms),
    "compact": (4, compact_forms),
    "decimals": (2, decimal_forms),
    "lists": (3, list_forms),
    "names": (2, name_forms),
}

CATEGORIES: tuple[str, ...] = tuple(_FORMS)

_DEV_PAIRS, _TEST_PAIRS_PER_CATEGORY, _UNSEEN_NAMES = 500, 110, 60
_PROBES = 36
_SPARE = 1.03  # factor by which more pairs are drawn, because ambiguous sources are dropped at the end
# Errors that Babel raises if a locale lacks the data for a form, or does not support one of its fields.
_NOT_IN_LOCALE = (LookupError, ValueError, AttributeError, TypeError, NotImplementedError)

ProgressCallback = Callable[[str, int], None]


@dataclass(frozen=True)
class LocalizedPair:
    """A text in two languages. ``inferable`` is False for a name that is not in the training set."""

    source: str
    target: str
    category: str
    inferable: bool


@dataclass(frozen=True)
class BuiltinCorpus:
    """The pairs for training, validation and test. No source occurs in two splits."""

    train: tuple[LocalizedPair, ...]
    dev: tuple[LocalizedPair, ...]
    test: tuple[LocalizedPair, ...]


def build_corpus(
    source_language: str = "en",
    target_language: str = "de",
    *,
    size: int = 40_000,
    seed: int = 1,
    progress: ProgressCallback | None = None,
) -> BuiltinCorpus:
    """Build a localization corpus from Unicode CLDR. The result depends only on the arguments.

    Args:
        source_language: A CLDR locale such as ``en``, ``pt_BR`` or ``zh-Hant``.
        target_language: Another CLDR locale.
        size: Number of training pairs (slightly fewer if a language lacks some forms).
        seed: Random seed.
        progress: Called with the current category and the number of pairs drawn so far.

    Raises:
        ConfigError: A locale is unknown, both are the same, or ``size`` is not positive.
    """
    source, target = _locale(source_language), _locale(target_language)
    if source == target:
        raise ConfigError(f"source and target languages are both {source_language!r}; expected two different languages")
    if size < 1:
        raise ConfigError(f"size = {size}: expected at least 1 training pair")
    shares = {category: share for category, (share, _) in _FORMS.items()}
    num_train, num_dev = _apportion(size, shares), _apportion(_DEV_PAIRS, dict.fromkeys(shares, 1))
    builder = _Builder(source, target, progress or (lambda category, done: None))
    candidates: dict[str, tuple[list[LocalizedPair], list[LocalizedPair]]] = {}
    for category in shares:
        wanted = int(_SPARE * (num_train[category] + num_dev[category] + _TEST_PAIRS_PER_CATEGORY)) + 1
        candidates[category] = builder.draw(category, wanted, Random(f"{seed}/{category}"))
    rng = Random(f"{seed}/split")
    unseen = builder.unseen_name_pairs(rng)
    train: list[LocalizedPair] = []
    dev: list[LocalizedPair] = []
    test: list[LocalizedPair] = []
    for category, (anchors, drawn) in candidates.items():
        drawn = builder.unambiguous(drawn)
        last_test = min(_TEST_PAIRS_PER_CATEGORY, len(drawn) // 3)
        last_dev = last_test + min(num_dev[category], len(drawn) // 8)
        test += drawn[:last_test]
        dev += drawn[last_test:last_dev]
        train += (builder.unambiguous(anchors) + drawn[last_dev:])[: num_train[category]]
    test += unseen
    for part in (train, dev, test):
        rng.shuffle(part)
    # CLDR uses narrow and thin spaces where people type plain spaces, so half of the training sources get plain spaces.
    train = [replace(pair, source=_look(pair.source)) if rng.random() < 0.5 else pair for pair in train]
    return BuiltinCorpus(tuple(train), tuple(dev), tuple(test))


def _locale(name: str) -> Locale:
    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError):
        identifiers = localedata.locale_identifiers()
        english = {spelled.lower(): code for code, spelled in Locale("en").languages.items() if code in identifiers}
        if name.lower() in english:
            hint = f"did you mean {english[name.lower()]!r}?"
        else:
            near = difflib.get_close_matches(name, identifiers, n=1)
            hint = spelling_hint(name, near or ("de", "en", "es", "fr", "ja", "pt_BR", "zh_Hant"))
        raise ConfigError(
            f"unknown language {name!r}; {hint} (accepted: the {len(identifiers)} Unicode CLDR locales that Babel has)"
        ) from None


def _apportion(total: int, shares: dict[str, int]) -> dict[str, int]:
    """Return integers in proportion to ``shares`` whose sum is ``total``."""
    whole = sum(shares.values())
    bounds = pairwise(total * seen // whole for seen in accumulate(shares.values(), initial=0))
    return {name: end - start for name, (start, end) in zip(shares, bounds, strict=True)}


def _look(text: str) -> str:
    """Return a text with each run of spaces of any width replaced with a single plain space."""
    return " ".join(text.split())


class _Builder:
    """Draws pairs, and records all sources so that no source is ambiguous or in two splits."""

    def __init__(self, source: Locale, target: Locale, progress: ProgressCallback) -> None:
        self.source, self.target, self.progress = source, target, progress
        self.targets: dict[str, str] = {}  # source, with plain spaces -> target
        self.ambiguous: set[str] = set()

    def draw(self, category: str, wanted: int, rng: Random) -> tuple[list[LocalizedPair], list[LocalizedPair]]:
        """Return the train-only pairs of a category, and randomly drawn pairs, about ``wanted`` in total."""
        forms = self._fair(_FORMS[category][1]())
        anchored = [(form, value) for form in forms for value in form.train_only_values]
        rng.shuffle(anchored)
        anchors = [pair for form, value in anchored if (pair := self._new_pair(form.write, value, category))]
        drawn: list[LocalizedPair] = []
        open_forms = [form for form in forms if form.draw]
        missing, attempts = wanted - min(len(anchors), wanted // 2), 20 * wanted
        while open_forms and len(drawn) < missing and attempts:
            attempts -= 1
            form = rng.choice(open_forms)
            assert form.draw is not None
            if pair := self._new_pair(form.write, form.draw(rng), category):
                drawn.append(pair)
                if len(drawn) % 500 == 0:
                    self.progress(category, len(self.targets))
        self.progress(category, len(self.targets))
        return anchors, drawn

    def _fair(self, forms: list[ValueForm]) -> list[ValueForm]:
        """Return the forms that exist in both locales for most values, and whose sources determine their targets."""
        known: dict[str, str] = {}
        fair = []
        for form in forms:
            probe = Random(0)  # draws the same values for all forms with the same ``draw``
            values = [*form.train_only_values, *(form.draw(probe) for _ in range(_PROBES) if form.draw)]
            texts = [texts for value in values if (texts := self._texts(form.write, value))]
            looks = [(_look(source), _look(target)) for source, target in texts]
            new: dict[str, str] = {}
            clear = all(known.get(look, target) == new.setdefault(look, target) == target for look, target in looks)
            if clear and 2 * len(looks) > len(values):
                known |= new
                fair.append(form)
        return fair

    def _texts(self, write: WriteFunction, value: Any) -> tuple[str, str] | None:
        """Write a value in both languages. Return None if a locale cannot express it on a single line."""
        try:
            texts = write(self.source, value), write(self.target, value)
        except _NOT_IN_LOCALE:
            return None
        source, target = texts
        if not source or not target or any(text.splitlines() != [text.strip()] for text in (source, target)):
            return None
        return source, target

    def _new_pair(self, write: WriteFunction, value: Any, category: str) -> LocalizedPair | None:
        """Return a pair if its source is new. A known source with a different target is marked as ambiguous."""
        texts = self._texts(write, value)
        if texts is None:
            return None
        source, target = texts
        look = _look(source)
        if look not in self.targets:
            self.targets[look] = target
            return LocalizedPair(source, target, category, inferable=True)
        if _look(self.targets[look]) != _look(target):
            self.ambiguous.add(look)
        return None

    def unseen_name_pairs(self, rng: Random) -> list[LocalizedPair]:
        """Return names for the test set that do not occur in the training set."""
        candidates = unseen_names(self.source, self.target)
        rng.shuffle(candidates)
        pairs = [self._new_pair(write, code, "names") for write, code in candidates]
        names = [LocalizedPair(pair.source, pair.target, "names", inferable=False) for pair in pairs if pair]
        return self.unambiguous(names)[:_UNSEEN_NAMES]

    def unambiguous(self, pairs: Iterable[LocalizedPair]) -> list[LocalizedPair]:
        """Return the pairs whose sources have only one target."""
        return [pair for pair in pairs if _look(pair.source) not in self.ambiguous]


def write_corpus(corpus: BuiltinCorpus, folder: Path, source_language: str, target_language: str) -> None:
    """Write ``train``, ``dev`` and ``test`` as one plain text file per language, and the categories of the test set.

    The files are ``train.en``, ``train.de`` and so on, with one example per line, and ``test.categories`` with the
    category of each test line: "names (not inferable)" for names that are not in the training set. Each file is written
    atomically.
    """
    for split in ("train", "dev", "test"):
        pairs: tuple[LocalizedPair, ...] = getattr(corpus, split)
        atomic_write_text(folder / f"{split}.{source_language}", "".join(f"{pair.source}\n" for pair in pairs))
        atomic_write_text(folder / f"{split}.{target_language}", "".join(f"{pair.target}\n" for pair in pairs))
    labels = (pair.category + ("" if pair.inferable else " (not inferable)") for pair in corpus.test)
    atomic_write_text(folder / "test.categories", "".join(f"{label}\n" for label in labels))
