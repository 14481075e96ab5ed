"""Build the tokenizers and token stores for training, once per run folder.

Tasks read and encode examples in different ways, so each task provides functions for these steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from headway.bundle import DefaultOptions, read_config
from headway.data.bad_lines import SKIP_HINT, BadLines
from headway.data.batching import PaddedBatch, TokenDataset
from headway.data.encoding import EncodingSpec, SideSpec
from headway.data.overlap import Overlap, count_overlap
from headway.data.readers import Corpus
from headway.data.store import (
    ContentHashes,
    FilterConfig,
    TokenStore,
    fingerprint,
    open_store,
    read_description,
    stored_fingerprint,
)
from headway.data.store_builder import Shard, open_or_build_store
from headway.engine.accelerate import accelerate
from headway.errors import BundleError, CheckpointError, ConfigError, DataError, TrainingError
from headway.hardware import autocast, choose_device, return_freed_memory
from headway.interop.hub import model_folder
from headway.storage import atomic_write_folder, atomic_write_text, lock_file
from headway.text.base import BOS, MASK, TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.special_tokens import LanguageSide, SpecialTokenTemplate
from headway.text.tokenizer import SAMPLE_BYTES, Tokenizer, language_tag
from headway.training.cache_keys import CacheKey, corpus_options, is_version_1, version_1_options
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.snapshot import checkpoint_folders
from headway.training.stream import to_device
from headway.training.task import RunData, Task, Tokenizers

BpeSampling = tuple[float, int, int, int]  # BPE-dropout: probability, segmentations, seed, order_version
ExampleReader = Callable[..., Iterator[tuple[str, ...]]]  # arguments: corpus, folder, bad_lines=...

_SAMPLING = ("probability", "segmentations", "seed", "order_version")
_WARM_UP_EXAMPLES, _WARM_UP_LENGTH = 8, 32
_NAMES = {True: ("joint", "joint"), False: ("source", "target")}  # names of tokenizer files, keyed by tokenizer.joint


@dataclass(frozen=True)
class CorpusEncoding:
    """Specification for converting one corpus to a token store.

    Attributes:
        read_examples: Function that returns an iterator over the examples of the corpus. It takes the keyword argument
            ``bad_lines``.
        make_sides: Function that returns the specifications for tokenizing source and target. It is called only if the
            store does not exist yet.
        side_cache_keys: JSON values that identify the encodings of the source and target sides.
        side_changes: Messages to report if the corresponding key has changed.
        other_cache_keys: Other JSON values that affect the store, by name.
    """

    read_examples: Callable[..., Iterator[tuple[str, ...]]]
    make_sides: Callable[[], tuple[SideSpec, SideSpec]]
    side_cache_keys: tuple[object, object]
    other_cache_keys: Mapping[str, object] = field(default_factory=dict)
    side_changes: tuple[str, str] = ("the source tokenizer has changed", "the target tokenizer has changed")


class DataPreparation:
    """Builds the tokenizers and token stores of a run folder, or loads them if they already exist."""

    def __init__(self, recipe: Recipe, run: Path, listener: Listener, shard: Shard | None = None) -> None:
        self.recipe, self.run, self.listener = recipe, run, listener
        self.content_hashes = ContentHashes(run / "tokens" / "inputs.json")
        self.data_folder = Path(recipe.data.folder)
        self._shard = shard or Shard()
        self._has_begun = bool(checkpoint_folders(run / "checkpoints"))

    def make_tokenizers(
        self, read: ExampleReader, columns: Sequence[int] = (0, 1), *task_key: object, tags: Sequence[str] = ()
    ) -> Tokenizers:
        """Return the run folder's tokenizers if they match the recipe; otherwise create and save them.

        New tokenizers are trained on ``columns`` of the examples that ``read`` yields, or copied from the model folder
        from which training starts. If this is a language model and the task has two sides, it provides only the source
        tokenizer. Saved tokenizers are reused only if ``task_key`` is also equal. If several processes call this
        method, one of them creates the tokenizers while the others wait. New tokenizers contain the tags of the target
        languages, and ``tags``.
        """
        self.check_dev_set(read)
        with lock_file(self.run / "tokens" / "tokenizer.lock"):
            if self.recipe.tokenizer_source:
                return self._tokenizers_of_start(model_folder(self.recipe.tokenizer_source), read, columns)
            return self._trained_tokenizers(read, columns, task_key, [*self._tags(), *tags])

    def check_dev_set(self, read: ExampleReader) -> None:
        """Check that the development set can be read before any other work starts, unless it has already been
        tokenized.

        Raises:
            DataError: The development set is missing, damaged or empty.
        """
        dev = self.recipe.data.dev
        if dev is None or stored_fingerprint(self.run / "tokens" / "dev") is not None:
            return
        self.hash_files(*self.recipe.data.train)  # reports a missing training file first
        if not sum(1 for _ in read(dev, self.data_folder, bad_lines=self.bad_lines())):
            raise DataError(
                f"data.dev: {dev.shown_files} contains no examples; expected at least one (remove data.dev to train "
                "without validation)"
            )

    def load_or_build_datasets(
        self, encode: Callable[[Any, BpeSampling | None], CorpusEncoding], filters: FilterConfig
    ) -> tuple[TokenDataset, TokenDataset | None] | None:
        """Return the training and development sets, or None if other shards are not finished yet.

        Args:
            encode: Function that returns the encoding of a corpus. Its second argument contains the settings of
                BPE-dropout, or is None if BPE-dropout is not used.
            filters: Length limits for training examples. The development set is never filtered.
        """
        data, stores = self.recipe.data, self.load_or_build_stores(encode, filters)
        if stores is None:
            return None
        train = TokenDataset(stores[0], [corpus.weight for corpus in data.train], data.temperature)
        if not len(train):
            raise TrainingError(
                "no training example is left after filtering; raise data.filter.max_length or max_length_ratio"
            )
        return train, TokenDataset([stores[1]]) if stores[1] else None

    def load_or_build_stores(
        self, encode: Callable[[Any, BpeSampling | None], CorpusEncoding], filters: FilterConfig | None
    ) -> tuple[list[TokenStore], TokenStore | None] | None:
        """Return the token stores of the training corpora and of the development set.

        See :meth:`load_or_build_datasets` for the arguments. If ``filters`` is None, all examples are kept. Returns
        None if other shards are not finished yet.
        """
        data = self.recipe.data
        stores: list[TokenStore] = []
        for number, corpus in enumerate(data.train):
            settings = (data.bpe_dropout, data.segmentations, self.recipe.training.seed, data.order_version)
            sampling = settings if data.bpe_dropout else None
            store = self._store(f"train-{number}", corpus, encode(corpus, sampling), filters, sampling)
            counts = store.filter_counts if store is not None else "some parts are built by other shards"
            self.listener.on_message(f"{corpus.shown_files}: {counts}")
            if store is not None:
                stores.append(store)
        dev = self._store("dev", data.dev, encode(data.dev, None)) if data.dev else None
        if dev and data.dev and dev.filter_counts.truncated:
            self.listener.on_message(f"{data.dev.shown_files}: {dev.filter_counts}")
        if len(stores) < len(data.train) or (data.dev and dev is None):
            return None
        if data.dev:
            corpora = [data.dev, *data.train]
            options = [corpus_options(corpus) for corpus in corpora]
            readers = [encode(corpus, None).read_examples for corpus in corpora]
            dev_examples, *train_examples = (read(bad_lines=self.bad_lines()) for read in readers)
            key = fingerprint(self.hash_files(*corpora), options, self._reading_options())
            self.report_overlap(data.dev.shown_files, key, dev_examples, chain.from_iterable(train_examples))
        return stores, dev

    def report_overlap(
        self, shown_dev: str, key: str, dev: Iterable[tuple[str, ...]], train: Iterable[tuple[str, ...]]
    ) -> None:
        """Report how many development examples also occur in the training data.

        The count is cached in tokens/overlap.json along with ``key``, a hash of everything that affects it. ``dev`` and
        ``train`` are read only if there is no cached count. ``shown_dev`` is the name of the development set in the
        message.
        """
        path = self.run / "tokens" / "overlap.json"
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            overlap = Overlap(**saved["overlap"]) if saved["key"] == key else None
        except (OSError, ValueError, KeyError, TypeError):
            overlap = None
        if overlap is None:
            progress = partial(self.listener.on_activity_progress, "examples compared with the development set")
            overlap = count_overlap(dev, train, progress)
            atomic_write_text(path, json.dumps({"key": key, "overlap": asdict(overlap)}))
        if overlap.texts:
            self.listener.on_message(f"{shown_dev}: {overlap}")

    def _store(
        self,
        name: str,
        corpus: Corpus,
        encoding: CorpusEncoding,
        filters: FilterConfig | None = None,
        sampling: BpeSampling | None = None,
    ) -> TokenStore | None:
        hashes = self.hash_files(corpus)
        version_1 = fingerprint(
            [digest for _, digest in hashes],
            corpus.fields,
            corpus.target_language,
            list(encoding.side_cache_keys),  # a list, because existing stores contain a hash of its repr
            version_1_options(filters) if filters else None,
            sampling and sampling[:3],
            *encoding.other_cache_keys.values(),
        )
        options = {
            "corpus": corpus_options(corpus),
            "encoding": encoding.side_cache_keys,
            "filter": filters,
            "bpe_dropout": sampling and dict(zip(_SAMPLING, sampling, strict=True)),
            **encoding.other_cache_keys,
            **self._reading_options(),
        }
        configs = [corpus, filters] if filters else [corpus]
        # version 1 supported only order_version 1
        is_old = is_version_1(configs) and (sampling is None or sampling[3] == 1)
        is_old = is_old and not self._reading_options()
        key = CacheKey(hashes, options, version_1 if is_old else None, {"encoding": encoding.side_changes})
        path = self.run / "tokens" / name
        if store := open_store(path, *key.valid_values):
            return store
        changes = key.differences(read_description(path))
        if self._has_begun and (stored := stored_fingerprint(path)) and stored not in key.valid_values:
            raise CheckpointError(
                f"{self.run}: {corpus.shown_files} differs from the data with which the run started "
                f"({'; '.join(changes) or 'the run does not record how'}), so scores before and after would not be "
                "comparable; restore the data to resume, choose another --run, or start over with --fresh"
            )
        if changes:
            self.listener.on_message(f"{corpus.shown_files}: tokenized again, because {'; '.join(changes)}")
        spec, bad_lines = EncodingSpec(encoding.make_sides(), filters, self.recipe.normalization), self.bad_lines()
        progress = partial(self.listener.on_activity_progress, "examples tokenized")
        return open_or_build_store(
            path,
            key.value,
            partial(encoding.read_examples, bad_lines=bad_lines),
            spec,
            shard=self._shard,
            progress=progress,
            description=key.description(),
            count_unreadable=lambda: bad_lines.count,
        )

    def _reading_options(self) -> dict[str, object]:
        """Return the non-inert options for reading corpora that affect results, for :attr:`CacheKey.options`."""
        data = self.recipe.data
        on_error = {} if data.on_error == "refuse" else {"on_error": data.on_error}
        return {**on_error, **({"normalize": True} if data.normalize else {})}

    def hash_files(self, *corpora: Corpus) -> list[tuple[str, str]]:
        """Return the name and the hash of each file of ``corpora``."""
        files = [file for corpus in corpora for file in corpus.files]
        paths = [self.data_folder / file for file in files]
        hashes = self.content_hashes.hash_files(paths, partial(self.listener.on_activity_progress, "files compared"))
        return list(zip(files, hashes, strict=True))

    def bad_lines(self) -> BadLines:
        """Return a new handler for the invalid lines in one pass over a corpus."""
        return BadLines(self.recipe.data.on_error, SKIP_HINT)

    def _trained_tokenizers(
        self, read: ExampleReader, sides: Sequence[int], task_key: Sequence[object], tags: Sequence[str]
    ) -> Tokenizers:
        config, corpora = self.recipe.tokenizer, self.recipe.data.train
        hashes = self.hash_files(*corpora)
        digests, fields = [digest for _, digest in hashes], [corpus.fields for corpus in corpora]
        version_1 = fingerprint(digests, version_1_options(config), fields, tags, *task_key)
        options = {
            "tokenizer": config,
            "corpora": [corpus_options(corpus) for corpus in corpora],
            "tags": tags,
            "task": task_key,
            **self._reading_options(),
        }
        is_old = is_version_1([config, *corpora]) and not self._reading_options()
        key = CacheKey(hashes, options, version_1 if is_old else None)
        if saved := self._saved_tokenizers(*key.valid_values):
            return saved
        if self._has_begun and not (self.run / "tokenizer").is_dir():
            raise CheckpointError(
                f"{self.run / 'tokenizer'}: missing, although training has already started with it; restore the "
                "folder from a copy of the run, or start over with --fresh"
            )
        if self._has_begun:
            changes = key.differences(self._tokenizer_description())
            raise CheckpointError(
                f"{self.run}: its tokenizer was trained on files that differ from {self.data_folder}, or with other "
                f"options ({'; '.join(changes) or 'the run does not record which'}); restore them to resume, or "
                "start over with --fresh"
            )
        self.listener.on_message(f"training the tokenizer ({config.kind})")
        if config.joint:
            source = target = self._train_tokenizer(read, sides, tags)
        else:
            source = self._train_tokenizer(read, sides[:1], tags)
            target = self._train_tokenizer(read, sides[1:])
        return self._save_tokenizers(Tokenizers(source, target), key.value, key.description())

    def _train_tokenizer(self, read: ExampleReader, sides: Sequence[int], tags: Sequence[str] = ()) -> Tokenizer:
        tokenizer = Tokenizer.train(self._texts(read, sides), self.recipe.tokenizer, tags=tags)
        return_freed_memory()  # the library uses hundreds of megabytes to learn merges
        wanted = self.recipe.tokenizer.vocab_size
        missing = {"bpe": "pairs to merge", "words": "words"}.get(tokenizer.kind)
        if missing and tokenizer.vocab_size < wanted:
            self.listener.on_message(
                f"the vocabulary has only {tokenizer.vocab_size:,} tokens instead of tokenizer.vocab_size = "
                f"{wanted:,}, because the text has no more {missing}"
            )
        return tokenizer

    def _texts(self, read: ExampleReader, sides: Sequence[int]) -> Iterator[str]:
        """Yield the texts of at most ``sample_lines`` examples (fewer if they are long), evenly spread over all
        corpora.
        """
        corpora, limit = self.recipe.data.train, self.recipe.tokenizer.sample_lines
        normalize = self.recipe.normalization
        sizes = [corpus.size(self.data_folder) for corpus in corpora]
        total = max(1, sum(size.lines for size in sizes))
        mean_bytes = sum(size.num_bytes for size in sizes) // total
        sample = min(max(1, limit * SAMPLE_BYTES // max(SAMPLE_BYTES, mean_bytes)), total)
        examples = chain.from_iterable(read(corpus, self.data_folder, bad_lines=self.bad_lines()) for corpus in corpora)
        for number, example in enumerate(examples):
            if (number + 1) * sample // total > number * sample // total:
                for side in sides:
                    yield example[side] if normalize is None else normalize(example[side])

    def _tokenizers_of_start(self, start: Path, read: ExampleReader, columns: Sequence[int]) -> Tokenizers:
        """Return the tokenizers of the model folder ``start`` or, once training has started, the copies in the run
        folder.
        """
        key, config = "from a model folder", self.recipe.tokenizer
        if checkpoint_folders(self.run / "checkpoints") and (tokenizers := self._saved_tokenizers(key)):
            return tokenizers
        model = read_config(start)
        template = model.imported_token_template and self._with_default_languages(model.imported_token_template)
        tokenizers = Tokenizers(*model.load_tokenizers(), template)
        if self.recipe.training.start_from is not None and self.recipe.capability == model.capability:
            tokenizers = replace(tokenizers, defaults=model.defaults)
        is_one_sided = self.recipe.capability == "translates" and model.capability != "translates"
        for name, value in tokenizer_settings(tokenizers).items():
            if getattr(config, name) != value and not (is_one_sided and name == "joint"):
                raise ConfigError(
                    f"tokenizer.{name} = {getattr(config, name)!r}, but {start}, the initial model or teacher, has "
                    f"{value!r}; set the key to this value, or train from scratch"
                )
        if tokenizers.imported_token_template is None:
            self._check_tags(tokenizers.source)
        if is_one_sided:
            tokenizers = self._with_target_tokenizer(tokenizers.source, read, columns)
        return self._save_tokenizers(tokenizers, key)

    def _with_target_tokenizer(self, source: TextTokenizer, read: ExampleReader, columns: Sequence[int]) -> Tokenizers:
        """Return tokenizers with the language model's tokenizer ``source`` on the source side.

        Sources begin with BOS and end with EOS, as in the language model. The target tokenizer comes from the language
        model from which the decoder starts. If there is none, it is the source tokenizer or, if ``tokenizer.joint`` is
        False, a new one.
        """
        template = SpecialTokenTemplate(source_prefix=(BOS,))
        if (decoder := self.recipe.training.start_decoder_from) is not None:
            target = read_config(model_folder(decoder)).load_tokenizers()[0]
            if (source.fingerprint == target.fingerprint) is not self.recipe.tokenizer.joint:
                raise ConfigError(
                    f"tokenizer.joint = {self.recipe.tokenizer.joint} does not match the tokenizers of the two "
                    "initial models; remove the key"
                )
            return Tokenizers(source, source if self.recipe.tokenizer.joint else target, template)
        if self.recipe.tokenizer.joint:
            return Tokenizers(source, source, template)
        if (tie := self.recipe.model.as_dict().get("tie")) in ("all", "inputs"):
            raise ConfigError(
                f"model.tie = {tie!r} shares one embedding between the languages, but with tokenizer.joint = false "
                "each language has a separate vocabulary; set model.tie to 'target' or 'none'"
            )
        self.listener.on_message(f"training the target tokenizer ({self.recipe.tokenizer.kind})")
        target = self._train_tokenizer(read, columns[1:])
        return Tokenizers(source, target, template)

    def _with_default_languages(self, template: SpecialTokenTemplate) -> SpecialTokenTemplate:
        """Return ``template`` with a default language for each side on which all corpora use a single language."""
        defaults = {}
        for side in get_args(LanguageSide):
            languages = {getattr(corpus, side) for corpus in self.recipe.data.train}
            if len(languages) == 1 and None not in languages:
                defaults[side] = languages.pop()
        return template.model_copy(update=defaults)

    def _check_tags(self, source: TextTokenizer) -> None:
        """Raise ConfigError if the model lacks the tag of a target language, or needs a target language that is not
        set.
        """
        start = self.recipe.training.start_from
        if missing := set(self._tags()) - set(source.tags):
            raise ConfigError(
                f"training.start_from = {start}: its vocabulary has no tag {min(missing)} (it has "
                f"{', '.join(source.tags) or 'none'}), and no tags can be added; use other values of target_language, "
                "remove it, or train from scratch"
            )
        languages = [tag for tag in source.tags if tag != MASK]
        if languages and not self._tags():
            raise ConfigError(
                f"training.start_from = {start}: the model expects the target language as one of the tags "
                f"{', '.join(languages)}; set target_language in every corpus of data.train"
            )

    def _tags(self) -> list[str]:
        codes = {corpus.target_language for corpus in self.recipe.data.train}
        return sorted(language_tag(code) for code in codes if code)

    def _tokenizer_description(self) -> Any:
        """Return the saved description of the files and options of the tokenizers, or None if there is none."""
        try:
            return json.loads((self.run / "tokenizer" / "made_from.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _saved_tokenizers(self, *keys: str) -> Tokenizers | None:
        """Return the tokenizers in the run folder if their key is one of ``keys``."""
        home, (source, target) = self.run / "tokenizer", _NAMES[self.recipe.tokenizer.joint]
        template, defaults = home / "framing.json", home / "defaults.json"
        try:
            if (home / "key").read_text(encoding="utf-8") not in keys:
                return None
            first = load_tokenizer(home, source)
            second = first if source == target else load_tokenizer(home, target)
            settings = json.loads(defaults.read_text(encoding="utf-8")) if defaults.exists() else {}
            tokenizers = Tokenizers(first, second, defaults=DefaultOptions.parse_saved(settings))
            if not template.exists():
                return tokenizers
            data = json.loads(template.read_text(encoding="utf-8"))
            return replace(tokenizers, imported_token_template=SpecialTokenTemplate.parse_saved(data, str(template)))
        except (OSError, ValueError, ConfigError, BundleError):
            return None

    def _save_tokenizers(self, tokenizers: Tokenizers, key: str, description: Any = None) -> Tokenizers:
        source, target = _NAMES[self.recipe.tokenizer.joint]
        with atomic_write_folder(self.run / "tokenizer") as aside:
            tokenizers.source.save(aside, source)
            if target != source:
                tokenizers.target.save(aside, target)
            if tokenizers.imported_token_template is not None:
                template = json.dumps(tokenizers.imported_token_template.as_dict(), ensure_ascii=False)
                (aside / "framing.json").write_text(template, encoding="utf-8")
            if settings := tokenizers.defaults.as_dict():
                (aside / "defaults.json").write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
            (aside / "key").write_text(key, encoding="utf-8")
            if description is not None:
                (aside / "made_from.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
        return tokenizers


def tokenizer_settings(tokenizers: Tokenizers) -> dict[str, Any]:
    """Return the [tokenizer] keys and values that a recipe needs to train a model with these tokenizers."""
    source, joint = tokenizers.source, tokenizers.source.fingerprint == tokenizers.target.fingerprint
    settings = {"kind": source.kind, "split_digits": source.split_digits} if isinstance(source, Tokenizer) else {}
    return {**settings, "joint": joint}


def warm_up_kernels(task: Task[Any, Any, Any], recipe: Recipe, prepared: RunData, listener: Listener) -> None:
    """Compile the kernels that training needs on this machine by running a training step on a few examples.

    Compiled code is cached on disk, so training with the same number of threads starts without delay. ``recipe`` must
    be complete (:func:`headway.training.fine_tuning.complete_recipe`). The model is discarded, and random states are
    preserved. For a GPU or torch.compile, this function does nothing, because their kernels depend on shapes, and data
    are often prepared on another machine.
    """
    training = recipe.training
    if training.device == "cuda" or training.compile == "on" or choose_device(training.device).type != "cpu":
        return
    listener.on_message(
        "running one training step on a few examples to compile kernels (only necessary once per machine)"
    )
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        model = accelerate(task.build_model(recipe, prepared))
        examples = prepared.train.batch(np.arange(min(_WARM_UP_EXAMPLES, len(prepared.train))))
        length = min(_WARM_UP_LENGTH, model.max_length or _WARM_UP_LENGTH)
        batch = to_device(PaddedBatch(examples.source[:, :length], examples.target[:, :length]), device)
        objective = task.build_objective(model, recipe, prepared)
        with autocast(device, training.precision):
            objective.train()(batch).backward()
        objective.eval()
        for precision in (training.precision, "float32"):  # precisions of development losses and decoding
            with torch.inference_mode(), autocast(device, precision):
                objective.cross_entropy(batch)
