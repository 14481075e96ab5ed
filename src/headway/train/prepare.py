"""From a recipe's files to what training reads: tokenizers and token stores, built once in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
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
from headway.text.framing import Frame, Framing
from headway.text.interface import TextTokenizer
from headway.text.packed import PackedEncoder
from headway.text.tokenizer import EOS
from headway.train.labels import run_labels
from headway.train.recipe import Recipe
from headway.train.report import Listener
from headway.train.start import completed
from headway.train.vocabulary import Tokenizers, run_tokenizers

__all__ = ["Prepared", "prepare", "prepare_shard"]

_ALL_BUT_EMPTY = FilterConfig(max_length=1 << 40, max_length_ratio=1e12)  # what is too long for a classifier is cut


@dataclass(frozen=True)
class Prepared:
    """Tokenizers and data, ready to train; for classification, how many training texts each label has; and what an
    imported model that training starts from has around a sentence."""

    source_tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer
    train: Corpora
    dev: Corpora | None
    labels: Mapping[str, int] = field(default_factory=dict)
    imported_framing: Framing | None = None

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
    recipe = completed(recipe, run)
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
    tokenizers = stores.tokenizers
    return Prepared(tokenizers.source, tokenizers.target, corpora, dev_set, labels, tokenizers.imported_framing)


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
            around: list[object] = [longest]
            sides = _labelled_sides(tokenizers.source, tuple(self.labels), longest, sampling)
            examples: Callable[[], Iterator[tuple[str, ...]]] = partial(
                read_labelled, corpus, folder, tuple(self.labels)
            )
        else:
            target = tokenizers.target.fingerprint
            frame = tokenizers.framing.frame(
                source_language=corpus.source_language, target_language=corpus.target_language
            )
            around = [asdict(frame)] if tokenizers.imported_framing else []
            sides = _sides(tokenizers, frame, sampling)
            examples = partial(read_examples, corpus, folder)
        key = fingerprint(
            [self.hashes.of(folder / file) for file in corpus.files],
            corpus.fields,
            corpus.target_language,
            [tokenizers.source.fingerprint, target],
            filters.as_dict() if filters else None,
            sampling,
            *around,
        )
        return open_or_build(
            self.run / "tokens" / name,
            key,
            examples,
            Work(sides, filters),
            shard=self.shard,
            progress=partial(self.listener.work, "examples tokenised"),
        )


def _sides(tokenizers: Tokenizers, frame: Frame, sampling: tuple[float, int, int] | None) -> tuple[Side, Side]:
    """How both sides are cut. A joint vocabulary has one encoder, which remembers the words of both."""

    def cutters(tokenizer: TextTokenizer) -> tuple[PackedEncoder, SampledEncoder | None]:
        return PackedEncoder(tokenizer), SampledEncoder(tokenizer, *sampling) if sampling else None

    source = cutters(tokenizers.source)
    target = source if tokenizers.target is tokenizers.source else cutters(tokenizers.target)
    return (
        Side(*source, before=frame.source_prefix, after=frame.source_suffix),
        Side(*target, before=frame.target_prefix, after=(EOS,)),
    )


def _labelled_sides(
    tokenizer: TextTokenizer, labels: tuple[str, ...], longest: int | None, sampling: tuple[float, int, int] | None
) -> tuple[Side, Side]:
    """How a text is cut, at the longest that the model reads, and what stands for its label."""
    sampler = SampledEncoder(tokenizer, *sampling) if sampling else None
    text = Side(PackedEncoder(tokenizer), sampler, after=(EOS,), longest=longest)
    repeated = LabelEncoder(labels, sampling[1]) if sampling else None
    return text, Side(LabelEncoder(labels), repeated)
