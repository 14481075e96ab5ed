"""A run's tokenizers: trained on its corpora, or those of the model folder that it starts from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from headway.bundle import own_framing, read_framing, read_tokenizers
from headway.data.inputs import ContentHashes, fingerprint
from headway.data.labels import read_labelled
from headway.data.readers import count_lines, read_examples
from headway.errors import BundleError, CheckpointError, ConfigError
from headway.storage import atomic_write_folder, locked
from headway.text.framing import Framing, LanguageSide
from headway.text.interface import TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.tokenizer import Tokenizer, language_tag
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.state import checkpoint_folders

__all__ = ["Tokenizers", "run_tokenizers", "tokenizer_facts"]


@dataclass(frozen=True)
class Tokenizers:
    """The source's and the target's, which may be the same.

    ``imported_framing`` is what stands around the sentences of an imported model that training starts from.
    """

    source: TextTokenizer
    target: TextTokenizer
    imported_framing: Framing | None = None

    @property
    def framing(self) -> Framing:
        """What stands around a sentence."""
        return self.imported_framing or own_framing(self.source)


def run_tokenizers(recipe: Recipe, run: Path, hashes: ContentHashes, listener: Listener) -> Tokenizers:
    """The tokenizers in ``run`` if they are what the recipe asks for; else those that it asks for, put there.

    Where several processes ask at once, one makes them and the others wait.
    """
    with locked(run / "tokens" / "tokenizer.lock"):
        return _from_bundle(recipe, run) if recipe.training.start_from else _trained(recipe, run, hashes, listener)


def _trained(recipe: Recipe, run: Path, hashes: ContentHashes, listener: Listener) -> Tokenizers:
    folder, config, tags = Path(recipe.data.folder), recipe.tokenizer, _tags(recipe)
    contents = [hashes.of(folder / file) for corpus in recipe.data.train for file in corpus.files]
    task = [recipe.task.kind] if recipe.task.kind == "classification" else []
    key = fingerprint(contents, config.as_dict(), [corpus.fields for corpus in recipe.data.train], tags, *task)
    if found := _saved(recipe, run, key):
        return found
    if checkpoint_folders(run / "checkpoints"):
        raise CheckpointError(
            f"{run}: its tokenizer was trained on other files than {folder} holds now; "
            "restore the corpus to go on, or start over with --fresh"
        )
    listener.say(f"training the tokenizer ({config.kind})")
    if recipe.task.kind == "classification":
        source = target = Tokenizer.train(_texts(recipe, folder, (0,)), config)
    elif config.joint:
        source = target = Tokenizer.train(_texts(recipe, folder, (0, 1)), config, tags=tags)
    else:
        source = Tokenizer.train(_texts(recipe, folder, (0,)), config, tags=tags)
        target = Tokenizer.train(_texts(recipe, folder, (1,)), config)
    return _save(Tokenizers(source, target), recipe, run, key)


def _from_bundle(recipe: Recipe, run: Path) -> Tokenizers:
    """Those of the model folder; once training has begun, the run's own copy of them."""
    key = "from a model folder"
    if checkpoint_folders(run / "checkpoints") and (found := _saved(recipe, run, key)):
        return found
    folder, config = Path(recipe.training.start_from or ""), recipe.tokenizer
    framing = read_framing(folder)
    found = Tokenizers(*read_tokenizers(folder), framing and _by_default(framing, recipe))
    for name, value in tokenizer_facts(found).items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"tokenizer.{name} = {getattr(config, name)!r}, but training.start_from = {folder} has {value!r}; "
                "set the key to that, or train from scratch"
            )
    if found.imported_framing is None:
        _check_tags(recipe, found.source)
    return _save(found, recipe, run, key)


def _by_default(framing: Framing, recipe: Recipe) -> Framing:
    """Where all corpora are in one language, that is what the trained model takes when it is not told."""
    spoken: dict[LanguageSide, set[str | None]] = {
        "source_language": {corpus.source_language for corpus in recipe.data.train},
        "target_language": {corpus.target_language for corpus in recipe.data.train},
    }
    only: dict[str, str | None] = {
        side: next(iter(codes)) for side, codes in spoken.items() if len(codes) == 1 and None not in codes
    }
    return framing.model_copy(update=only)


def tokenizer_facts(tokenizers: Tokenizers) -> dict[str, Any]:
    """What a recipe's [tokenizer] must say, if anything, to train a model that has these."""
    source, joint = tokenizers.source, tokenizers.source.fingerprint == tokenizers.target.fingerprint
    own = {"kind": source.kind, "split_digits": source.split_digits} if isinstance(source, Tokenizer) else {}
    return {**own, "joint": joint}


def _check_tags(recipe: Recipe, source: TextTokenizer) -> None:
    """Refuse languages that a model of Headway's own cannot be told, and a model that is not told its own."""
    folder = recipe.training.start_from
    if missing := set(_tags(recipe)) - set(source.tags):
        raise ConfigError(
            f"training.start_from = {folder}: its vocabulary has no tag {min(missing)} "
            f"(it has {', '.join(source.tags) or 'none'}), and none can be added; use other values of target_language "
            "or leave it out, or train from scratch"
        )
    if source.tags and not _tags(recipe):
        raise ConfigError(
            f"training.start_from = {folder}: the model is told the target language by {', '.join(source.tags)}; "
            "set target_language in every corpus of data.train"
        )


def _tags(recipe: Recipe) -> list[str]:
    return sorted({language_tag(corpus.target_language) for corpus in recipe.data.train if corpus.target_language})


def _names(recipe: Recipe) -> tuple[str, str]:
    return ("joint", "joint") if recipe.tokenizer.joint else ("source", "target")


def _saved(recipe: Recipe, run: Path, key: str) -> Tokenizers | None:
    home, (source, target) = run / "tokenizer", _names(recipe)
    try:
        if (home / "key").read_text(encoding="utf-8") != key:
            return None
        first = load_tokenizer(home, source)
        framing = home / "framing.json"
        return Tokenizers(
            first,
            first if source == target else load_tokenizer(home, target),
            Framing.parse(json.loads(framing.read_text(encoding="utf-8")), str(framing)) if framing.exists() else None,
        )
    except (OSError, ValueError, ConfigError, BundleError):
        return None


def _save(tokenizers: Tokenizers, recipe: Recipe, run: Path, key: str) -> Tokenizers:
    source, target = _names(recipe)
    with atomic_write_folder(run / "tokenizer") as aside:
        tokenizers.source.save(aside, source)
        if target != source:
            tokenizers.target.save(aside, target)
        if tokenizers.imported_framing is not None:
            framing = json.dumps(tokenizers.imported_framing.as_dict(), ensure_ascii=False)
            (aside / "framing.json").write_text(framing, encoding="utf-8")
        (aside / "key").write_text(key, encoding="utf-8")
    return tokenizers


def _texts(recipe: Recipe, folder: Path, sides: tuple[int, ...]) -> Iterator[str]:
    """The texts of at most ``sample_lines`` examples, evenly spread over all."""
    total = max(1, sum(count_lines(folder / corpus.files[0]) for corpus in recipe.data.train))
    sample = min(recipe.tokenizer.sample_lines, total)
    read = read_labelled if recipe.task.kind == "classification" else read_examples
    examples = chain.from_iterable(read(corpus, folder) for corpus in recipe.data.train)
    for number, example in enumerate(examples):
        if (number + 1) * sample // total > number * sample // total:
            for side in sides:
                yield example[side]
