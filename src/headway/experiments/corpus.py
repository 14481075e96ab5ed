"""Data of the experiments: public corpora in the full version, a made-up language in the quick version.

The made-up language is small enough to be learned in a second or two. Still, translating it needs more than a
word-by-word lookup: adjectives move behind their noun and take the ending of its gender.

    source   big dog sees red cat stop
    target   hundo grando vidas kata ruga fino

Results on short sentences do not apply to long ones, so sentences are also *joined*: each row of a joined training set
contains one to ``MAX_JOINED_SENTENCES`` consecutive sentences. A test set contains the same sentences at every row
length, so its scores can be compared across lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

from headway.data.readers import Corpus, read_examples
from headway.data.store import fingerprint
from headway.errors import ConfigError
from headway.experiments.experiment import Settings
from headway.storage import atomic_write_folder

MAX_JOINED_SENTENCES = 3  # maximum number of sentences per row of a joined training set

MULTI30K = tuple(
    f"multi30k/{name}.{language}" for name in ("train", "val", "test_2016_flickr") for language in ("de", "en")
)
"""The corpus files that the full version of the experiments on translation reads."""

TINYSHAKESPEARE = ("tinyshakespeare/train.txt", "tinyshakespeare/val.txt")
BOOKS = ("books/train.txt", "books/dev.txt")
AG_NEWS = ("ag-news/train.tsv", "ag-news/dev.tsv")

TextPair = tuple[str, str]

_NOUNS = {
    "dog": ("hundo", "o"),
    "bird": ("birdo", "o"),
    "child": ("bambo", "o"),
    "cat": ("kata", "a"),
    "cow": ("vaka", "a"),
    "fish": ("pesha", "a"),
}
_ADJECTIVES = {"big": "grand", "red": "rug", "old": "vel", "small": "pik"}
VERBS = {"sees": "vidas", "likes": "amas", "hears": "odas", "finds": "trovas"}
_MADE_UP = {"train": 4800, "dev": 100, "test": 120}  # number of sentences
_TESTED = 500  # number of Multi30k test sentences to translate, which takes a fifth of the total time


@dataclass(frozen=True)
class ExperimentCorpus:
    """A training set and a development set in files, and test sentences in memory.

    The files are called NAME.LANGUAGE. ``tokenizer`` is the recipe's tokenizer section for this corpus.
    """

    folder: Path
    languages: tuple[str, str]
    train_name: str
    dev_name: str
    test_pairs: tuple[TextPair, ...]
    tokenizer: dict[str, Any]

    def recipe_sections(self) -> dict[str, Any]:
        """Return the recipe sections that describe the corpus."""
        train, dev = ({"files": self.file_names(name)} for name in (self.train_name, self.dev_name))
        return {
            "task": {"source_language": self.languages[0], "target_language": self.languages[1]},
            "data": {"folder": str(self.folder), "train": [train], "dev": dev},
            "tokenizer": self.tokenizer,
        }

    def file_names(self, name: str) -> list[str]:
        """Return the names of the source and the target file of the set ``name``."""
        return [f"{name}.{language}" for language in self.languages]

    def read_pairs(self, name: str) -> Iterator[TextPair]:
        """Yield the sentence pairs of the set ``name``."""
        corpus = Corpus(files=tuple(self.file_names(name)))
        yield from ((source, target) for source, target in read_examples(corpus, self.folder))


def experiment_corpus(settings: Settings, *, join: bool = False) -> ExperimentCorpus:
    """Return the made-up language (quick version) or Multi30k (full version).

    With ``join``, sentences of the training and development sets are joined into longer rows.
    """
    plain = _made_up(settings.work_folder) if settings.quick else _multi30k(settings)
    if not join:
        return plain
    rows = {
        name: join_randomly(list(plain.read_pairs(source)), MAX_JOINED_SENTENCES, Random(1))
        for name, source in (("train", plain.train_name), ("dev", plain.dev_name))
    }
    folder = _write(rows, plain.languages, settings.work_folder, "joined")
    return replace(plain, folder=folder, train_name="train", dev_name="dev")


def _multi30k(settings: Settings) -> ExperimentCorpus:
    """Return Multi30k, German to English: 29,000 image descriptions (Elliott et al. 2016)."""
    folder = find_data(settings, MULTI30K, "Multi30k")
    corpus = ExperimentCorpus(folder, ("de", "en"), "train", "val", (), {"vocab_size": 3000})
    return replace(corpus, test_pairs=tuple(islice(corpus.read_pairs("test_2016_flickr"), _TESTED)))


def find_data(settings: Settings, files: Sequence[str], name: str) -> Path:
    """Return the folder of the corpus ``name``, which contains ``files``, below the data folder.

    Raises:
        ConfigError: There is no data folder, or a file is missing.
    """
    folder = settings.data_folder / Path(files[0]).parent if settings.data_folder else None
    if folder is None or not all((folder.parent / file).is_file() for file in files):
        raise ConfigError(
            f"{folder or 'no data'}: the full version trains on {name}; give a folder with {', '.join(files)}, or use "
            "the quick version, which needs no data"
        )
    return folder


def _made_up(work: Path) -> ExperimentCorpus:
    random, languages = Random(1), ("source", "target")
    drawn = {name: [sample_text_pair(random) for _ in range(count)] for name, count in _MADE_UP.items()}
    folder = _write(drawn, languages, work, "corpus")
    return ExperimentCorpus(folder, languages, "train", "dev", tuple(drawn["test"]), {"kind": "whitespace"})


def sample_text_pair(random: Random) -> TextPair:
    """Draw a sentence of the made-up language and its translation; each of the two nouns may have an adjective."""
    subject, verb, thing = _noun_phrase(random), random.choice(sorted(VERBS)), _noun_phrase(random)
    return f"{subject[0]} {verb} {thing[0]} stop", f"{subject[1]} {VERBS[verb]} {thing[1]} fino"


def _noun_phrase(random: Random) -> TextPair:
    noun = random.choice(sorted(_NOUNS))
    translation, ending = _NOUNS[noun]
    if random.random() < 0.3:
        return noun, translation
    adjective = random.choice(sorted(_ADJECTIVES))
    return f"{adjective} {noun}", f"{translation} {_ADJECTIVES[adjective]}{ending}"


def join_randomly(pairs: Sequence[TextPair], max_sentences: int, random: Random) -> list[TextPair]:
    """Join consecutive sentences into rows of one to ``max_sentences``.

    Rows of each length contain about the same number of sentences in total.
    """
    rows, start, counts = [], 0, range(1, max_sentences + 1)
    while start < len(pairs):
        (count,) = random.choices(counts, [1 / count for count in counts])
        rows.append(_row(pairs[start : start + count]))
        start += count
    return rows


def join_groups(pairs: Sequence[TextPair], group_size: int) -> list[TextPair]:
    """Join each ``group_size`` consecutive sentences into one row; the last row may be shorter."""
    return [_row(pairs[start : start + group_size]) for start in range(0, len(pairs), group_size)]


def _row(pairs: Sequence[TextPair]) -> TextPair:
    return " ".join(source.strip() for source, _ in pairs), " ".join(target.strip() for _, target in pairs)


def _write(texts: Mapping[str, Sequence[TextPair]], suffixes: tuple[str, str], work: Path, kind: str) -> Path:
    """Write each text to two files in a folder, whose name contains a hash of the content."""
    files = {
        f"{name}.{suffix}": "".join(f"{pair[side]}\n" for pair in pairs)
        for (name, pairs), (side, suffix) in product(texts.items(), enumerate(suffixes))
    }
    return write_files(files, work, kind)


def made_up_text(num_sentences: int, random: Random) -> str:
    """Draw sentences of the made-up language, one per line."""
    return "".join(f"{sample_text_pair(random)[0]}\n" for _ in range(num_sentences))


def write_files(files: Mapping[str, str], work: Path, kind: str) -> Path:
    """Write texts to the files of a folder, whose name contains a hash of the content, and return the folder."""
    folder = work / f"{kind}-{fingerprint(dict(files))[:10]}"
    if not folder.is_dir():
        with atomic_write_folder(folder) as aside:
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8")
    return folder
