"""Data of the experiments: public corpora in the full version, made-up sentences in the quick version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from headway.data.store import fingerprint
from headway.errors import ConfigError
from headway.experiments.experiment import Settings
from headway.storage import atomic_write_folder

MULTI30K = tuple(
    f"multi30k/{name}.{language}" for name in ("train", "val", "test_2016_flickr") for language in ("de", "en")
)
"""The corpus files that the full version of the experiments on translation reads."""

BOOKS = ("books/train.txt", "books/dev.txt")
AG_NEWS = ("ag-news/train.tsv", "ag-news/dev.tsv")

_NOUNS = ("bird", "cat", "child", "cow", "dog", "fish")
_ADJECTIVES = ("big", "old", "red", "small")
_VERBS = ("finds", "hears", "likes", "sees")


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


def pair_files(corpus: Path) -> dict[str, Any]:
    """Return the keys of a recipe's data section that name the sentence pairs of a corpus."""
    train, dev = ({"files": [f"{name}.de", f"{name}.en"]} for name in ("train", "val"))
    return {"folder": str(corpus), "train": [train], "dev": dev}


def made_up_text(num_sentences: int, random: Random) -> str:
    """Draw sentences like "big dog sees cat stop", one per line; each of the two nouns may have an adjective."""

    def noun_phrase() -> str:
        noun = random.choice(_NOUNS)
        return noun if random.random() < 0.3 else f"{random.choice(_ADJECTIVES)} {noun}"

    sentences = (f"{noun_phrase()} {random.choice(_VERBS)} {noun_phrase()} stop" for _ in range(num_sentences))
    return "".join(f"{sentence}\n" for sentence in sentences)


def write_files(files: Mapping[str, str], work: Path, kind: str) -> Path:
    """Write texts to the files of a folder, whose name contains a hash of the content, and return the folder."""
    folder = work / f"{kind}-{fingerprint(dict(files))[:10]}"
    if not folder.is_dir():
        with atomic_write_folder(folder) as aside:
            for name, text in files.items():
                (aside / name).write_text(text, encoding="utf-8")
    return folder
