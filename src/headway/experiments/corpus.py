"""Data of the experiments: public corpora in the full version, a made-up language in the quick version.

The made-up language is small enough to be learned in a second or two. Still, translating it needs more than a
word-by-word lookup: adjectives move behind their noun and take the ending of its gender.

    source   big dog sees red cat stop
    target   hundo grando vidas kata ruga fino
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

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
