"""Check a sample of a training corpus: count the pairs that the cheap rules would drop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headway.corpus.cleaning.config import REPAIRS, RULES, CleaningConfig, RepairName, RuleName
from headway.corpus.cleaning.corpus_lines import CorpusLine
from headway.corpus.cleaning.decisions import Judge, usable_lines
from headway.corpus.cleaning.length_ratio import RatioHistogram
from headway.corpus.cleaning.measures import Measurer, get_value
from headway.corpus.cleaning.rules import rules_for
from headway.corpus.cleaning.scripts import language_scripts
from headway.data.bad_lines import BadLines
from headway.data.readers import Corpus, read_examples, uncompressed_name
from headway.errors import ConfigError, MissingPackageError
from headway.text.languages import base_language

_SAMPLE = 10_000
_READ = 1_000_000  # maximum number of lines of a corpus to read, because reading all lines would take too long
_BATCH = 1000
_MANY = 0.01
_NOT_IN_HINT: frozenset[RuleName] = frozenset(
    {"duplicate", "contradiction", "misaligned", "truncated", "cross_entropy"}
)


Languages = tuple[str | None, str | None]


@dataclass(frozen=True)
class CleaningHint:
    """The number of pairs in a sample that the cheap rules would drop.

    Attributes:
        num_pairs: Number of pairs in the sample.
        num_dropped: Number of pairs that would be dropped.
        rule: Name of the rule that would drop the most pairs.
        command: The command that cleans the corpus.
    """

    num_pairs: int
    num_dropped: int
    rule: str
    command: str

    @property
    def is_needed(self) -> bool:
        """Whether enough pairs would be dropped to show the hint."""
        return self.num_dropped > _MANY * self.num_pairs

    def __str__(self) -> str:
        return (
            f"{self.num_dropped / self.num_pairs:.1%} of a sample of {self.num_pairs:,} training pairs look wrong "
            f"(most frequent reason: {self.rule}); this command shows which pairs and why: {self.command}"
        )


def cleaning_hint(corpora: Sequence[Corpus], folder: Path, languages: Languages = (None, None)) -> CleaningHint | None:
    """Check a sample of the pairs in training corpora. Return None if there are no pairs.

    Rules are skipped if they need a package that is not installed or a language that is not known.

    Args:
        corpora: The training corpora, whose examples are pairs.
        folder: The folder that the corpora's file names are relative to.
        languages: The source and target language of corpora that do not declare their languages.

    Raises:
        DataError: A file cannot be read.
    """
    total, dropped, by_rule = 0, 0, dict[str, int]()
    first: tuple[Corpus, Languages] | None = None
    for corpus in corpora:
        of_corpus = _languages(corpus, languages)
        read = min(corpus.size(folder).lines, _READ)
        stride = max(-(-read * len(corpora) // _SAMPLE), 1)
        examples = islice(read_examples(corpus, folder, bad_lines=BadLines("skip")), 0, read, stride)
        counts, num_pairs = _dropped(examples, of_corpus)
        total += num_pairs
        if counts and first is None:
            first = corpus, of_corpus
        for name, count in counts.items():
            by_rule[name] = by_rule.get(name, 0) + count
            dropped += count
    if first is None:
        return CleaningHint(total, 0, "", "") if total else None
    return CleaningHint(total, dropped, max(by_rule, key=by_rule.__getitem__), _command(*first, folder))


def _dropped(examples: Iterable[tuple[str, ...]], languages: Languages) -> tuple[dict[str, int], int]:
    """Return the number of pairs that each rule would drop, and the total number of pairs."""
    measurer = _measurer(languages)
    lines = map(CorpusLine, examples)
    rows = []
    while batch := list(islice(lines, _BATCH)):
        rows.append(measurer.measure(batch).rows)
    histogram = RatioHistogram()
    for part in rows:
        usable = part[usable_lines(part)]
        histogram.add(get_value(usable, "source_characters"), get_value(usable, "target_characters"))
    rules = rules_for(measurer.rules, "pairs", has_held_out=False)
    judge, counts = Judge(rules, CleaningConfig().thresholds, histogram.limits()), dict[str, int]()
    for part in rows:
        decisions = judge.decide(part, 0)
        for index, rule in enumerate(rules):
            if number := int((decisions.dropped_by == index).sum()):
                counts[rule.name] = counts.get(rule.name, 0) + number
    return counts, sum(map(len, rows))


def _measurer(languages: Languages) -> Measurer:
    """Return a measurer that needs only installed packages and known languages."""
    rules: list[RuleName] = [name for name in RULES if name not in _NOT_IN_HINT]
    repairs: list[RepairName] = list(REPAIRS)
    without: list[tuple[list[RepairName], list[RuleName]]] = [
        (repairs, rules),
        ([name for name in repairs if name != "encoding"], rules),
        (repairs, [name for name in rules if name != "language"]),
        ([name for name in repairs if name != "encoding"], [name for name in rules if name != "language"]),
    ]
    for some_repairs, some_rules in without:
        measurer = Measurer("pairs", languages, some_repairs, some_rules)
        try:
            measurer.load()
        except (MissingPackageError, ConfigError):
            continue
        return measurer
    raise AssertionError("the last measurer needs no package and no language")


def _languages(corpus: Corpus, default: Languages) -> Languages:
    """Return the languages that a corpus declares, or the default ones, or the languages in its file name suffixes."""
    ends = [uncompressed_name(Path(name)).suffix.removeprefix(".") for name in corpus.files]
    known = [end if language_scripts(end) and len(base_language(end)) == 2 else None for end in ends]
    source, target = [*known, None, None][:2] if corpus.format == "text" else (None, None)
    return corpus.source_language or default[0] or source, corpus.target_language or default[1] or target


def _command(corpus: Corpus, languages: Languages, folder: Path) -> str:
    names = " ".join(str(folder / name) for name in corpus.files)
    source, target = (code or "LANGUAGE" for code in languages)
    fields = f" --fields {','.join(corpus.fields)}" if corpus.fields else ""
    return f"headway corpus clean {names}{fields} -o clean --from {source} --to {target}"
