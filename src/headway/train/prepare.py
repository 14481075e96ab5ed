"""From a recipe's files to what training reads: tokenizers and token stores, built once in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headway.data.batching import Corpora
from headway.data.building import Shard, open_or_build
from headway.data.encoding import Side, Work
from headway.data.inputs import ContentHashes, fingerprint
from headway.data.labels import LabelEncoder, read_labelled
from headway.data.readers import Corpus, read_examples
from headway.data.store import FilterConfig, TokenStore
from headway.errors import TrainingError
from headway.text.dropout import SampledEncoder
from headway.text.packed import PackedEncoder
from headway.text.tokenizer import EOS, Tokenizer, language_tag
from headway.train.labels import run_labels
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.vocabulary import Tokenizers, run_tokenizers

__all__ = ["Prepared", "prepare", "prepare_shard"]

_ALL_BUT_EMPTY = FilterConfig(max_length=1 << 40, max_length_ratio=1e12)  # what is too long for a classifier is cut


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data, ready to train; for classification, how many training texts each label has."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Corpora
    dev: Corpora | None
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def target_size(self) -> int:
        """How many outcomes a prediction has: tokens, or classes."""
        return len(self.labels) or self.target_tokenizer.vocab_size


def prepare(recipe: Recipe, run: Path, listener: Listener) -> Prepared:
    """Train the tokenizers and tokenise the corpora, or find both done already."""
    prepared = prepare_shard(recipe, run, listener, Shard())
    assert prepared is not None
    return prepared


def prepare_shard(recipe: Recipe, run: Path, listener: Listener, shard: Shard) -> Prepared | None:
    """One shard's part of what :func:`prepare` does; None while parts of other shards are missing."""
    hashes = ContentHashes(run / "tokens" / "inputs.json")
    labels = run_labels(recipe, run, hashes, listener) if recipe.task.kind == "classification" else {}
    stores = _Stores(recipe, run, run_tokenizers(recipe, run, hashes, listener), hashes, listener, shard, labels)
    train = [stores.train(number) for number in range(len(recipe.data.train))]
    dev = stores.dev(recipe.data.dev) if recipe.data.dev else None
    whole = [store for store in train if store is not None]
    if len(whole) < len(train) or (recipe.data.dev and dev is None):
        return None
    corpora = Corpora(whole, [corpus.weight for corpus in recipe.data.train], recipe.data.temperature)
    if not len(corpora):
        raise TrainingError(
            "no training example is left after filtering; raise data.filter.max_length or max_length_ratio"
        )
    dev_set = Corpora([dev]) if dev else None
    return Prepared(stores.tokenizers.source, stores.tokenizers.target, corpora, dev_set, labels)


@dataclass(frozen=True)
class _Stores:
    """The token stores of a run."""

    recipe: Recipe
    run: Path
    tokenizers: Tokenizers
    hashes: ContentHashes
    listener: Listener
    shard: Shard
    labels: Mapping[str, int]

    def train(self, number: int) -> TokenStore | None:
        """That of a training corpus, where all of its parts are there."""
        corpus, data = self.recipe.data.train[number], self.recipe.data
        filters = _ALL_BUT_EMPTY if self.labels else data.filter
        store = self._store(f"train-{number}", corpus, filters, data.bpe_dropout)
        counts = store.counts if store else "some parts are left to other shards"
        self.listener.say(f"{' + '.join(corpus.files)}: {counts}")
        return store

    def dev(self, corpus: Corpus) -> TokenStore | None:
        """That of the development set: nothing left out, and segmented as a trained model does it."""
        store = self._store("dev", corpus, None, 0.0)
        if store and store.counts.cut:
            self.listener.say(f"{' + '.join(corpus.files)}: {store.counts}")
        return store

    def _store(self, name: str, corpus: Corpus, filters: FilterConfig | None, dropout: float) -> TokenStore | None:
        folder, tokenizers = Path(self.recipe.data.folder), self.tokenizers
        sampling = (dropout, self.recipe.data.segmentations, self.recipe.training.seed) if dropout else None
        if self.labels:
            longest = getattr(self.recipe.model, "max_length", None)
            target: object = tuple(self.labels)
            sides = _labelled_sides(tokenizers.source, tuple(self.labels), longest, sampling)
            examples: Callable[[], Iterator[tuple[str, ...]]] = partial(
                read_labelled, corpus, folder, tuple(self.labels)
            )
        else:
            longest, target = None, tokenizers.target.fingerprint
            sides = _sides(tokenizers, corpus.target_language, sampling)
            examples = partial(read_examples, corpus, folder)
        key = fingerprint(
            [self.hashes.of(folder / file) for file in corpus.files],
            corpus.fields,
            corpus.target_language,
            [tokenizers.source.fingerprint, target],
            filters.as_dict() if filters else None,
            sampling,
            *([longest] if self.labels else []),
        )
        return open_or_build(
            self.run / "tokens" / name,
            key,
            examples,
            Work(sides, filters, EOS),
            shard=self.shard,
            progress=partial(self.listener.work, "examples tokenised"),
        )


def _sides(
    tokenizers: Tokenizers, target_language: str | None, sampling: tuple[float, int, int] | None
) -> tuple[Side, Side]:
    """How both sides are cut. A joint vocabulary has one encoder, which remembers the words of both."""
    tag = (tokenizers.source.tag_id(language_tag(target_language)),) if target_language else ()
    source, target = tokenizers.source, tokenizers.target
    encoder = PackedEncoder(source)
    sampler = SampledEncoder(source, *sampling) if sampling else None
    if target is source:
        return Side(encoder, sampler, tag), Side(encoder, sampler)
    return (
        Side(encoder, sampler, tag),
        Side(PackedEncoder(target), SampledEncoder(target, *sampling) if sampling else None),
    )


def _labelled_sides(
    tokenizer: Tokenizer, labels: tuple[str, ...], longest: int | None, sampling: tuple[float, int, int] | None
) -> tuple[Side, Side]:
    """How a text is cut, at the longest that the model reads, and what stands for its label."""
    sampler = SampledEncoder(tokenizer, *sampling) if sampling else None
    text = Side(PackedEncoder(tokenizer), sampler, longest=longest)
    repeated = LabelEncoder(labels, sampling[1]) if sampling else None
    return text, Side(LabelEncoder(labels), repeated, ended=False)
