"""From a recipe's files to what training reads: tokenizers and token stores, built once in the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.data.batching import Corpora
from headway.data.readers import Corpus, read_examples
from headway.data.store import FilterConfig, TokenStore, fingerprint, open_or_build
from headway.errors import BundleError, CheckpointError, TrainingError
from headway.storage import replaced_folder
from headway.text.tokenizer import EOS, Tokenizer
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.state import checkpoint_folders

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data, ready to train."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Corpora
    dev: Corpora | None


def prepare(recipe: Recipe, run: Path, listener: Listener) -> Prepared:
    """Train the tokenizers and tokenise the corpora, or find both done already."""
    folder = Path(recipe.data.folder)
    source_tokenizer, target_tokenizer = _tokenizers(recipe, folder, run, listener)
    tokenizers = (source_tokenizer, target_tokenizer)
    stores = []
    for number, corpus in enumerate(recipe.data.train):
        store = _store(corpus, folder, run / "tokens" / f"train-{number}", tokenizers, recipe.data.filter, listener)
        listener.say(f"{' + '.join(corpus.files)}: {store.counts}")
        stores.append(store)
    train = Corpora(stores, [corpus.weight for corpus in recipe.data.train])
    if not len(train):
        raise TrainingError(
            "no training pair is left after filtering; raise data.filter.max_length or max_length_ratio"
        )
    dev = None
    if recipe.data.dev:
        dev = Corpora([_store(recipe.data.dev, folder, run / "tokens" / "dev", tokenizers, None, listener)])
    return Prepared(source_tokenizer, target_tokenizer, train, dev)


def _store(
    corpus: Corpus,
    folder: Path,
    path: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    filters: FilterConfig | None,
    listener: Listener,
) -> TokenStore:
    prints = [tokenizer.fingerprint for tokenizer in tokenizers]
    options = filters.as_dict() if filters else None
    key = fingerprint([folder / file for file in corpus.files], corpus.fields, prints, options)
    progress = partial(listener.work, "pairs tokenised")
    return open_or_build(
        path, key, partial(read_examples, corpus, folder), tokenizers, filters, end=EOS, progress=progress
    )


def _tokenizers(recipe: Recipe, folder: Path, run: Path, listener: Listener) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run, if they were trained on these files with these options; else new ones."""
    home = run / "tokenizer"
    files = [folder / file for corpus in recipe.data.train for file in corpus.files]
    key = fingerprint(files, recipe.tokenizer.as_dict(), [corpus.fields for corpus in recipe.data.train])
    names = ("joint", "joint") if recipe.tokenizer.joint else ("source", "target")
    try:
        if (home / "key").read_text(encoding="utf-8") == key:
            return Tokenizer.load(home, names[0]), Tokenizer.load(home, names[1])
    except (OSError, BundleError):
        pass
    if checkpoint_folders(run / "checkpoints"):
        raise CheckpointError(
            f"{run}: its tokenizer was trained on other files than {folder} holds now; "
            "restore the corpus to go on, or start over with --fresh"
        )
    listener.say(f"training the tokenizer ({recipe.tokenizer.kind})")
    if recipe.tokenizer.joint:
        source = target = Tokenizer.train(_texts(recipe, folder, (0, 1)), recipe.tokenizer)
    else:
        source = Tokenizer.train(_texts(recipe, folder, (0,)), recipe.tokenizer)
        target = Tokenizer.train(_texts(recipe, folder, (1,)), recipe.tokenizer)
    with replaced_folder(home) as aside:
        for name, tokenizer in dict(zip(names, (source, target), strict=True)).items():
            tokenizer.save(aside, name)
        (aside / "key").write_text(key, encoding="utf-8")
    return source, target


def _texts(recipe: Recipe, folder: Path, sides: tuple[int, ...]) -> Iterator[str]:
    for corpus in recipe.data.train:
        for example in read_examples(corpus, folder):
            for side in sides:
                yield example[side]
