"""From a recipe's files to what training reads: tokenizers and token stores, built once in the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.data.batching import Corpora
from headway.data.building import Shard, open_or_build
from headway.data.encoding import Side, Work
from headway.data.inputs import ContentHashes, fingerprint
from headway.data.readers import Corpus, read_examples
from headway.data.store import FilterConfig, TokenStore
from headway.errors import TrainingError
from headway.text.dropout import SampledEncoder
from headway.text.packed import PackedEncoder
from headway.text.tokenizer import EOS, Tokenizer, language_tag
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.vocabulary import Tokenizers, run_tokenizers

__all__ = ["Prepared", "prepare", "prepare_shard"]


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data, ready to train."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Corpora
    dev: Corpora | None


def prepare(recipe: Recipe, run: Path, listener: Listener) -> Prepared:
    """Train the tokenizers and tokenise the corpora, or find both done already."""
    prepared = prepare_shard(recipe, run, listener, Shard())
    assert prepared is not None
    return prepared


def prepare_shard(recipe: Recipe, run: Path, listener: Listener, shard: Shard) -> Prepared | None:
    """One shard's part of what :func:`prepare` does; None while parts of other shards are missing."""
    hashes = ContentHashes(run / "tokens" / "inputs.json")
    stores = _Stores(recipe, run, run_tokenizers(recipe, run, hashes, listener), hashes, listener, shard)
    train = [stores.train(number) for number in range(len(recipe.data.train))]
    dev = stores.dev(recipe.data.dev) if recipe.data.dev else None
    whole = [store for store in train if store is not None]
    if len(whole) < len(train) or (recipe.data.dev and dev is None):
        return None
    corpora = Corpora(whole, [corpus.weight for corpus in recipe.data.train], recipe.data.temperature)
    if not len(corpora):
        raise TrainingError(
            "no training pair is left after filtering; raise data.filter.max_length or max_length_ratio"
        )
    return Prepared(stores.tokenizers.source, stores.tokenizers.target, corpora, Corpora([dev]) if dev else None)


@dataclass(frozen=True)
class _Stores:
    """The token stores of a run."""

    recipe: Recipe
    run: Path
    tokenizers: Tokenizers
    hashes: ContentHashes
    listener: Listener
    shard: Shard

    def train(self, number: int) -> TokenStore | None:
        """That of a training corpus, where all of its parts are there."""
        corpus, data = self.recipe.data.train[number], self.recipe.data
        store = self._store(f"train-{number}", corpus, data.filter, data.bpe_dropout)
        counts = store.counts if store else "some parts are left to other shards"
        self.listener.say(f"{' + '.join(corpus.files)}: {counts}")
        return store

    def dev(self, corpus: Corpus) -> TokenStore | None:
        """That of the development set: nothing left out, and segmented as a trained model does it."""
        return self._store("dev", corpus, None, 0.0)

    def _store(self, name: str, corpus: Corpus, filters: FilterConfig | None, dropout: float) -> TokenStore | None:
        folder, tokenizers = Path(self.recipe.data.folder), self.tokenizers
        sampling = (dropout, self.recipe.data.segmentations, self.recipe.training.seed) if dropout else None
        key = fingerprint(
            [self.hashes.of(folder / file) for file in corpus.files],
            corpus.fields,
            corpus.target_language,
            [tokenizers.source.fingerprint, tokenizers.target.fingerprint],
            filters.as_dict() if filters else None,
            sampling,
        )
        return open_or_build(
            self.run / "tokens" / name,
            key,
            partial(read_examples, corpus, folder),
            Work(_sides(tokenizers, corpus.target_language, sampling), filters, EOS),
            shard=self.shard,
            progress=partial(self.listener.work, "pairs tokenised"),
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
