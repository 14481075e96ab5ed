"""Plant known faults in a clean parallel corpus, and count the faults that cleaning found.

    python benchmarks/plant_faults.py plant --data ../shared/data --out faults
    headway corpus clean faults/damaged.de faults/damaged.en -o cleaned --from de --to en
    python benchmarks/plant_faults.py score faults cleaned

``plant`` damages 20 % of the pairs of the Tatoeba training set (German and English) with faults that are typical of
downloaded corpora. It writes the ``damaged`` corpus, the ``undamaged`` corpus and the ``good`` pairs (the other 80 %),
all with the lines in the same order. It also writes ``faults.jsonl`` with the line number (from 1), the kind, and the
original pair of each fault:

==============  ====================================================================================================
random          the target of another pair, drawn at random
shifted         blocks of 20 to 200 consecutive lines whose targets are moved by one to three lines
copy            the target is the source, half of them with small differences (case, punctuation, one word less)
third language  one side is a French sentence (Multi30k)
markup          HTML entities instead of characters, and tags
near duplicate  a pair that is also an earlier line, but for case and punctuation
numbers         a number of the target is another one
truncated       30 to 60 % of the target's words are missing at its end; half of them with the final punctuation
==============  ====================================================================================================

A fault counts as found if its line is dropped, or if cleaning restored the pair. A good pair counts as lost if it is
dropped and no pair is kept that equals it except for case and punctuation.
"""

import json
import math
import platform
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headway.data.readers import read_lines

SHARE = 0.2
# The share of each kind among all faults. Few pairs have numbers on both sides, so 500 numbers are changed.
SHARES = {
    "random": 0.2,
    "shifted": 0.2,
    "copy": 0.14,
    "third language": 0.14,
    "markup": 0.1,
    "near duplicate": 0.08,
    "truncated": 0.125,
    "numbers": 0.015,
}
MOST_NUMBERS = 500
BLOCK = (20, 200)  # lines
FEWEST_TRUNCATED_WORDS = 5  # words of a target before it is truncated
_ENTITIES = {"ä": "&auml;", "ö": "&ouml;", "ü": "&uuml;", "Ä": "&Auml;", "Ö": "&Ouml;", "Ü": "&Uuml;", "ß": "&szlig;"}
_TAGS = ("<b>{}</b>", "<p>{}</p>", "{}<br />", '<font color="#ff0000">{}</font>', '<a href="/s?q=1&amp;p=2">{}</a>')
_DIGITS = re.compile(r"\d+")
_END = re.compile(r"\W*$")

Pair = tuple[str, str]
app = typer.Typer()


def read_pairs(source: Path, target: Path) -> list[Pair]:
    """Return the pairs of two aligned files."""
    return list(zip(read_lines(source), read_lines(target), strict=True))


def write_pairs(pairs: list[Pair], stem: Path) -> None:
    """Write ``STEM.de`` and ``STEM.en``."""
    for language, texts in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        Path(f"{stem}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def folded(pair: Pair) -> tuple[str, ...]:
    """Return a pair without case, punctuation and spaces, for comparing near duplicates."""
    return tuple("".join(filter(str.isalnum, text.casefold())) for text in pair)


class Planter:
    """Damages pairs of a corpus.

    Args:
        pairs: The clean pairs.
        french: Sentences in a third language.
        seed: The seed of all random choices.
    """

    def __init__(self, pairs: list[Pair], french: list[str], seed: int) -> None:
        self.pairs, self.french, self.dice = pairs, french, random.Random(seed)
        self.damaged = list(pairs)
        self.kinds: dict[int, str] = {}  # by index of the pair
        self.targets: dict[str, set[str]] = {}
        for source, target in pairs:
            self.targets.setdefault(source, set()).add(target)

    def plant(self) -> None:
        """Damage 20 % of the pairs."""
        total = int(SHARE * len(self.pairs))
        counts = {kind: int(share * total) for kind, share in SHARES.items()}
        counts["numbers"] = min(counts["numbers"], MOST_NUMBERS)
        counts["random"] += total - sum(counts.values())
        self._shift(counts.pop("shifted"))
        # Kinds with the fewest suitable pairs come first; near duplicates last, because they repeat good pairs.
        for kind in ("numbers", "truncated", "markup", "copy", "third language", "random", "near duplicate"):
            self._damage(kind, counts[kind], getattr(self, "_" + kind.replace(" ", "_")))

    def _damage(self, kind: str, count: int, damage: Callable[[int], Pair | None]) -> None:
        order = self.dice.sample(range(len(self.pairs)), len(self.pairs))
        for index in order:
            if count == 0:
                return
            if index not in self.kinds and (pair := damage(index)) is not None and pair != self.pairs[index]:
                self.damaged[index], self.kinds[index], count = pair, kind, count - 1
        raise ValueError(f"too few pairs for the fault {kind!r}: {count} are missing")

    def _shift(self, count: int) -> None:
        while count > 0:
            size = min(self.dice.randint(*BLOCK), max(count, BLOCK[0]))
            start = self.dice.randrange(len(self.pairs) - size)
            block = range(start, start + size)
            distance = self.dice.randint(1, 3)
            moved = {index: self.pairs[start + (index - start + distance) % size][1] for index in block}
            right = [index for index in block if moved[index] in self.targets[self.pairs[index][0]]]
            if right or any(index in self.kinds for index in block):
                continue
            for index in block:
                self.damaged[index], self.kinds[index] = (self.pairs[index][0], moved[index]), "shifted"
            count -= size

    def _random(self, index: int) -> Pair | None:
        source, target = self.pairs[index][0], self.dice.choice(self.pairs)[1]
        return None if target in self.targets[source] else (source, target)

    def _copy(self, index: int) -> Pair | None:
        source = self.pairs[index][0]
        words = source.split()
        if len(words) < 4:
            return None
        copy = self.dice.choice([source, source, source, source.lower(), _END.sub("", source), " ".join(words[1:])])
        return source, copy

    def _third_language(self, index: int) -> Pair | None:
        source, target = self.pairs[index]
        french = self.dice.choice(self.french)
        return (source, french) if self.dice.random() < 0.5 else (french, target)

    def _markup(self, index: int) -> Pair | None:
        pair = list(self.pairs[index])
        side = self.dice.randrange(2)
        with_entities = "".join(_ENTITIES.get(character, character) for character in escape(pair[side]))
        if with_entities == pair[side] or self.dice.random() < 0.5:
            pair[side] = self.dice.choice(_TAGS).format(pair[side])
        else:
            pair[side] = with_entities
        return pair[0], pair[1]

    def _numbers(self, index: int) -> Pair | None:
        source, target = self.pairs[index]
        numbers = sorted(_DIGITS.findall(target))
        if not numbers or sorted(_DIGITS.findall(source)) != numbers:
            return None
        old = self.dice.choice(list(_DIGITS.finditer(target)))
        new = str(int(old.group()) + self.dice.randint(1, 9))
        changed = target[: old.start()] + new + target[old.end() :]
        return None if sorted(_DIGITS.findall(changed)) == numbers else (source, changed)

    def _near_duplicate(self, index: int) -> Pair | None:
        if index == 0:
            return None
        earlier = self.dice.randrange(index)
        if earlier in self.kinds:
            return None
        changes: list[Callable[[str], str]] = [
            str.upper, str.lower, lambda text: _END.sub("", text), lambda text: _END.sub("!", text),
            lambda text: text.replace(",", ""),
        ]  # fmt: skip
        change = self.dice.choice(changes)
        source, target = self.pairs[earlier]
        pair = (change(source), change(target))
        # "ß" has no upper case letter, so that such a pair would differ in more than its case.
        return pair if pair != (source, target) and folded(pair) == folded((source, target)) else None

    def _truncated(self, index: int) -> Pair | None:
        source, target = self.pairs[index]
        words = target.split()
        fewest, most = math.ceil(0.3 * len(words)), int(0.6 * len(words))
        if len(words) < FEWEST_TRUNCATED_WORDS or fewest > most:
            return None
        kept = _END.sub("", " ".join(words[: -self.dice.randint(fewest, most)]))
        end = _END.search(target)
        assert end is not None
        return source, kept + (end.group() if self.dice.random() < 0.5 else "")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the record of each fault, in the order of the lines."""
        for index, kind in sorted(self.kinds.items()):
            yield {"line": index + 1, "kind": kind, "before": self.pairs[index], "after": self.damaged[index]}


@app.command()
def plant(
    data: Annotated[Path, typer.Option(help="Folder with tatoeba-de-en and multi30k.")],
    out: Annotated[Path, typer.Option(help="Folder for the corpora and the record of the faults.")],
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    lines: Annotated[int | None, typer.Option(help="Use only the first lines.")] = None,
) -> None:
    """Damage 20 % of the pairs of the Tatoeba training set."""
    tatoeba = data / "tatoeba-de-en"
    pairs = read_pairs(tatoeba / "train.de", tatoeba / "train.en")[:lines]
    planter = Planter(pairs, list(read_lines(data / "multi30k" / "train.fr")), seed)
    planter.plant()
    out.mkdir(parents=True, exist_ok=True)
    write_pairs(planter.damaged, out / "damaged")
    write_pairs(pairs, out / "undamaged")
    write_pairs([pair for index, pair in enumerate(pairs) if index not in planter.kinds], out / "good")
    with (out / "faults.jsonl").open("w", encoding="utf-8") as file:
        for record in planter.records():
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"{len(pairs):,} pairs, {len(planter.kinds):,} damaged: {dict(Counter(planter.kinds.values()))}")


def _without_spaces(pair: Pair) -> Pair:
    return " ".join(pair[0].split()), " ".join(pair[1].split())


def count_found(faults: Path, cleaned: Path) -> dict[str, Any]:
    """Return how many faults of each kind were found, and how many good pairs were lost, by rule."""
    damaged = read_pairs(faults / "damaged.de", faults / "damaged.en")
    planted = {record["line"]: record for record in map(json.loads, read_lines(faults / "faults.jsonl"))}
    dropped = {record["line"]: record["rule"] for record in map(json.loads, read_lines(cleaned / "dropped.jsonl.zst"))}
    left = [line for line in range(1, len(damaged) + 1) if line not in dropped]
    kept = dict(zip(left, read_pairs(cleaned / "kept.de", cleaned / "kept.en"), strict=True))
    kinds: dict[str, Any] = {}
    for line, record in planted.items():
        counts = kinds.setdefault(record["kind"], {"planted": 0, "repaired": 0, "found": 0, "rules": Counter()})
        before: Pair = tuple(record["before"])
        repaired = line in kept and _without_spaces(kept[line]) == _without_spaces(before)
        counts["planted"] += 1
        counts["repaired"] += repaired
        counts["found"] += repaired or line in dropped
        if line in dropped:
            counts["rules"][dropped[line]] += 1
    still_kept = {folded(pair) for line, pair in kept.items() if line not in planted}
    good = [line for line in range(1, len(damaged) + 1) if line not in planted]
    lost = [line for line in good if line in dropped and folded(damaged[line - 1]) not in still_kept]
    return {
        "kinds": {kind: kinds[kind] for kind in SHARES},
        "good": len(good),
        "dropped": sum(line in dropped for line in good),
        "lost": len(lost),
        "lost by rule": Counter(dropped[line] for line in lost),
        "lost lines": lost,
    }


@app.command()
def score(
    faults: Annotated[Path, typer.Argument(help="Folder that `plant` wrote.")],
    cleaned: Annotated[Path, typer.Argument(help="Output folder of `headway corpus clean` for the damaged corpus.")],
    examples: Annotated[int, typer.Option(help="Number of lost good pairs to print.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Print how many faults of each kind were found, and how many good pairs were lost."""
    counts = count_found(faults, cleaned)
    table = Table("fault", "planted", "found", "of these repaired", "dropped by")
    for kind, row in counts["kinds"].items():
        rules = ", ".join(f"{rule} {count:,}" for rule, count in row["rules"].most_common(4))
        share = f"{row['found'] / row['planted']:.1%}"
        table.add_row(kind, f"{row['planted']:,}", share, f"{row['repaired']:,}", rules)
    Console(width=120).print(table)
    rules = ", ".join(f"{rule} {count:,}" for rule, count in counts["lost by rule"].most_common())
    share = counts["lost"] / counts["good"]
    print(f"good pairs lost: {counts['lost']:,} of {counts['good']:,} ({share:.2%}): {rules or 'none'}")
    print(f"good pairs dropped, of which an equal pair may be kept: {counts['dropped']:,}")
    lost = counts.pop("lost lines")
    if examples:
        damaged = read_pairs(faults / "damaged.de", faults / "damaged.en")
        for line in random.Random(1).sample(lost, min(examples, len(lost))):
            print(line, *damaged[line - 1], sep="\t")
    if output is not None:
        head = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "headway": version("headway"),
            "command": "python benchmarks/plant_faults.py " + " ".join(sys.argv[1:]),
        }
        output.write_text(json.dumps(head | counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
