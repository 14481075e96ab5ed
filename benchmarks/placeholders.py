"""Measure how often placeholders are preserved in translations, and how they affect the remaining text.

    python benchmarks/placeholders.py MODEL --source test.de --reference test.en
    python benchmarks/placeholders.py MODEL --source F --reference F --sentences 2000 --output F.json

One or two placeholders, URLs, e-mail addresses, numbers with units, emoji or code fragments are inserted between the
words of each sentence. The first table shows the share of sentences in which all of them are intact and occur exactly
once, and the BLEU of the remaining text: the translation without the insertions, compared with the sentence's
reference. This BLEU should be the same as for the original sentences. The rows are:

- the original sentences;
- "copied by the model": the model without protection;
- "stand-ins": each placeholder is replaced by a word before translation, and put back if the translation contains the
  word exactly once;
- "removed": placeholders are always removed and inserted by alignment;
- "Headway": the default of ``translate``, which tries copying first and then removing.

The second table shows the same for sentences in which a placeholder replaces a capitalized word that is not the first
word (in German, a noun). The sentence then lacks a word, but BLEU is computed with the whole reference, so no
translation can reach 100.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from headway.evaluation import bleu
from headway.predict import TranslateOptions, Translation, Translator, load_translator
from headway.predict.markup.placeholders import count_placeholders, keeps_placeholders, parse_plain_text
from headway.predict.translation.marked_translation import MarkedTexts

PLACEHOLDERS = [
    "{name}",
    "{0}",
    "{{ user }}",
    "${total}",
    "%s",
    "%1$d",
    "%(count)s",
    "{n, plural, one {# x} other {# y}}",
]
OTHERS = [
    "https://example.org/a_b?c=1",
    "www.example.de",
    "info@example.org",
    "5 km",
    "12,5 %",
    "🎉",
    "👍🏽",
    "`ls -l`",
]
STAND_INS = ["Anna", "Berlin"]  # the words that stand for the first and the second placeholder


@dataclass(frozen=True)
class Row:
    """The result of one method of translation.

    Attributes:
        name: Name of the method.
        intact: Share of the sentences in which every placeholder occurs exactly once.
        bleu: BLEU of the translations without placeholders.
    """

    name: str
    intact: float
    bleu: str


def insert(sentence: str, dice: random.Random) -> tuple[str, list[str]]:
    """Insert one or two placeholders between the words of a sentence. Also return the placeholders."""
    words = sentence.split()
    chosen = dice.sample(PLACEHOLDERS + OTHERS, dice.choice((1, 2)))
    for each in chosen:
        words.insert(dice.randrange(len(words)), each)  # never after the last word, which ends with a full stop
    return " ".join(words), chosen


def replace_noun(sentence: str, dice: random.Random) -> tuple[str, list[str]] | None:
    """Replace a capitalized word. Return None if only the first word is capitalized."""
    words = sentence.split()
    nouns = [at for at, word in enumerate(words) if at and word[:1].isupper()]
    if not nouns:
        return None
    at, chosen = dice.choice(nouns), dice.choice(PLACEHOLDERS)
    words[at] = chosen + re.sub(r"^\w+", "", words[at])
    return " ".join(words), [chosen]


def rest_of(text: str, inserted: Sequence[str]) -> str:
    """Return a translation without the insertions, in any of their forms."""
    for each in inserted:
        text = text.replace(each, "")
    for each in (*STAND_INS, *(number for text in inserted for number in re.findall(r"^\d\S*", text))):
        text = re.sub(rf"\b{re.escape(each)}\b", "", text)
    return re.sub(r"\s+([.,!?])", r"\1", " ".join(text.split()))


def is_intact(source: str, inserted: Sequence[str], target: str) -> bool:
    """Return whether each insertion occurs exactly once. For numbers, only the digits are compared."""
    names = [each for each in inserted if not each[0].isdigit()]
    return all(count_placeholders(target)[each] == 1 for each in names) and keeps_placeholders(source, target)


def without_protection(translator: Translator, sources: Sequence[str]) -> list[str]:
    """Return the model's translations of the sources."""
    return [each.text for each in translator.translate(sources, protect=False)]


def with_stand_ins(translator: Translator, inserted: Sequence[Sequence[str]], sources: Sequence[str]) -> list[str]:
    """Return the translations of the sources with stand-ins, which are replaced again if they occur exactly once."""
    replaced = []
    for source, own in zip(sources, inserted, strict=True):
        for each, word in zip(own, STAND_INS, strict=False):
            source = source.replace(each, word)
        replaced.append(source)
    found = without_protection(translator, replaced)
    results = []
    for target, own in zip(found, inserted, strict=True):
        for each, word in zip(own, STAND_INS, strict=False):
            if target.count(word) == 1:
                target = target.replace(word, each)
        results.append(target)
    return results


def removed(translator: Translator, sources: Sequence[str]) -> list[str]:
    """Return the translations in which every placeholder is inserted by alignment."""

    class Removing(MarkedTexts):
        def parse(self, text: str):  # type: ignore[no-untyped-def]
            document = parse_plain_text(text)
            return document and document.without_placeholders()

    marked = Removing(sources, TranslateOptions(), can_align=True)
    texts, alignment = [unit.source for unit in marked.units], any(unit.needs_alignment for unit in marked.units)
    marked.store(marked.units, translator.translate(texts, protect=False, alignment=alignment))
    return [each.text for each in marked.merge() if isinstance(each, Translation)]


def by_default(translator: Translator, sources: Sequence[str]) -> list[str]:
    """Return the translations with Headway's default options."""
    return [each.text for each in translator.translate(sources)]


def measure(translator: Translator, cases: Sequence[tuple[str, str, list[str], str]]) -> list[Row]:
    """Return a row for each method. A case consists of a sentence, the sentence with placeholders, the placeholders,
    and the reference."""
    plain, sources, inserted, references = (list(each) for each in zip(*cases, strict=True))
    ways: dict[str, Callable[[Sequence[str]], list[str]]] = {
        "copied by the model": partial(without_protection, translator),
        "stand-ins": partial(with_stand_ins, translator, inserted),
        "removed": partial(removed, translator),
        "Headway": partial(by_default, translator),
    }
    rows = [Row("sentences as they were", 1.0, str(bleu(without_protection(translator, plain), references)))]
    for name, way in ways.items():
        targets = way(sources)
        intact = sum(map(is_intact, sources, inserted, targets)) / len(targets)
        rows.append(Row(name, intact, str(bleu(list(map(rest_of, targets, inserted)), references))))
    return rows


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table."""
    print(f"\n{title}")
    for row in rows:
        print(f"  {row.name:<24} intact {100 * row.intact:6.2f} %   {row.bleu}")


def main() -> None:
    """Measure, print, and write the result if a file is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=2_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    translator = load_translator(arguments.model)
    pairs = list(
        zip(*(path.read_text("utf-8").splitlines() for path in (arguments.source, arguments.reference)), strict=True)
    )[: arguments.sentences]
    pairs = [(source, target) for source, target in pairs if source.split() and parse_plain_text(source) is None]
    dice = random.Random(1)
    inserted = [(source, *insert(source, dice), target) for source, target in pairs]
    nouns = [(source, *found, target) for source, target in pairs if (found := replace_noun(source, dice)) is not None]
    tables = {"inserted": measure(translator, inserted), "in place of a noun": measure(translator, nouns)}
    show(f"{len(inserted):,} sentences with inserted placeholders", tables["inserted"])
    show(f"{len(nouns):,} sentences with a placeholder in place of a noun", tables["in place of a noun"])
    if arguments.output:
        result = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "model": arguments.model.name,
            "sentences": [len(inserted), len(nouns)],
            "rows": {name: [asdict(row) for row in rows] for name, rows in tables.items()},
        }
        arguments.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
