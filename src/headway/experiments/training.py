"""Train the models that experiments compare. A variant that several experiments share is trained only once.

A *variant* is the common recipe with a few keys changed. The name of its run folder contains a hash of the resolved
recipe and the data files, so that a second request finds the trained model, and an interrupted training resumes.

The full version's recipe is a Transformer with a million weights (2 + 2 layers, d_model 128) and 600 steps of 2,048
tokens, nearly three epochs of Multi30k. One step takes 13 GFLOP. A core with 70 GFLOP/s in float32 needs 0.3 s for it,
so a run takes three minutes. Such models are of no practical use, but good enough to show differences between variants,
and small enough to train three of each variant:

    plain sentences    16 variants (attention scores, heads, restricted attention,  48 runs
                                    label smoothing)
    joined sentences    6 variants (sentence length, positions)                     18 runs
    deep, 6 + 6 layers  5 variants (warm-up), 300 steps of 1,024 tokens             15 runs

The quick version's models train in a second or two each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from headway.bundle import Bundle
from headway.config import Config
from headway.data.store import ContentHashes, fingerprint
from headway.decode import DecodingOptions, Hypothesis, Request, SearchVocabulary, search
from headway.evaluation import bleu
from headway.experiments.corpus import ExperimentCorpus, TextPair
from headway.experiments.experiment import Numbers, Settings
from headway.tasks import parse_recipe, train
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.loading import load_tokenizer
from headway.training.recipe import Recipe

Changes = Mapping[str, Mapping[str, Any]]
"""Keys of the recipe that a variant changes, by section."""

_FULL: dict[str, dict[str, Any]] = {
    "data": {"max_tokens": 2048},
    "model": {"d_model": 128, "num_heads": 4, "d_ff": 256, "encoder_layers": 2, "decoder_layers": 2},
    "optimizer": {"schedule": "linear", "learning_rate": 3e-3, "warmup_steps": 150, "clip_norm": 1.0},
    "training": {"steps": 600},
}
_QUICK: dict[str, dict[str, Any]] = {
    "data": {"max_tokens": 384, "pool_size": 1024},
    "model": {"d_model": 32, "num_heads": 4, "d_ff": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0},
    "optimizer": {"schedule": "linear", "learning_rate": 1e-2, "warmup_steps": 12, "clip_norm": 1.0},
    "training": {"steps": 60},
}
NO_CHANGES: Changes = {}
_GREEDY = DecodingOptions(beam_size=1)
_DECODED_TOKENS = 4096  # source tokens per decoding batch


@dataclass(frozen=True)
class TrainedRun:
    """A trained variant of the common recipe.

    Attributes:
        run_folder: Folder of the training run.
        model_folder: Folder of the trained model.
        dev_loss: Cross-entropy on the development set without label smoothing, in nats per target token.
        training_seconds: Duration of all training steps, in seconds.
    """

    run_folder: Path
    model_folder: Path
    dev_loss: float
    training_seconds: float


def resolve_recipe(settings: Settings, corpus: ExperimentCorpus, seed: int, changes: Changes = NO_CHANGES) -> Recipe:
    """Return the common recipe for ``corpus`` with ``changes``."""
    common = _QUICK if settings.quick else _FULL
    steps = {**common["training"], **changes.get("training", {})}["steps"]
    sections = merge_sections(corpus.recipe_sections(), _run_sections(settings, seed, steps), common, changes)
    if sections["model"].get("kind", "transformer") != "transformer":  # other architectures have other keys
        sections["model"] = dict(changes["model"])
    return parse_recipe(sections, "the experiment's recipe")


def make_recipe(settings: Settings, seed: int, steps: int, *parts: Changes) -> Recipe:
    """Return a recipe of the sections in ``parts``, for runs that do not use the common recipe of translation models.

    Keys of later parts replace those of earlier parts.
    """
    return parse_recipe(merge_sections(_run_sections(settings, seed, steps), *parts), "the experiment's recipe")


def _run_sections(settings: Settings, seed: int, steps: int) -> dict[str, dict[str, Any]]:
    """Return the recipe sections that all runs share: one validation, at the end, whose model is the result."""
    device = {"device": "cpu", "precision": "float32"} if settings.quick else {}
    return {
        "training": {"seed": seed, "steps": steps, "compile": "off", "log_every": max(steps // 5, 1), **device},
        "validation": {"metric": "loss", "every": steps},
        "checkpoints": {"every": max(steps // 4, 100), "keep": 1, "average": 0},
    }


def merge_sections(*parts: Changes) -> dict[str, dict[str, Any]]:
    """Merge the sections of recipes. Keys of later parts replace those of earlier parts."""
    sections: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, keys in part.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


def train_variant(settings: Settings, corpus: ExperimentCorpus, seed: int, changes: Changes = NO_CHANGES) -> TrainedRun:
    """Train the common recipe with ``changes``, or return the model that an earlier call has trained.

    Raises:
        DivergenceError: The training diverged.
        KeyboardInterrupt: The training was interrupted. A second call resumes it.
    """
    return _train_once(settings, *_recipe_and_run(settings, corpus, seed, changes))


def train_recipe(settings: Settings, recipe: Recipe, name: str) -> TrainedRun:
    """Train ``recipe``, or return the model that an earlier call has trained. ``name`` begins the run folder's name.

    Raises:
        DivergenceError: The training diverged.
        KeyboardInterrupt: The training was interrupted. A second call resumes it.
    """
    return _train_once(settings, recipe, _run_folder(settings, recipe, name))


def _train_once(settings: Settings, recipe: Recipe, run: Path) -> TrainedRun:
    def compute() -> Numbers:
        settings.say(f"training {run.name}")
        result = train(recipe, run)
        if result.interrupted:
            raise KeyboardInterrupt
        assert result.model_folder is not None
        for folder in ("checkpoints", "tokens"):  # no longer needed; the folders of all runs would take gigabytes
            shutil.rmtree(run / folder)
        dev, last = (read_metrics(run, kind)[-1] for kind in ("dev", "train"))
        return {"folder": result.model_folder.name, "loss": dev["loss"], "seconds": last["elapsed_s"]}

    stored = settings.cached(f"{run.relative_to(settings.work_folder)}/result", compute)
    return TrainedRun(run, run / stored["folder"], stored["loss"], stored["seconds"])


def _recipe_and_run(settings: Settings, corpus: ExperimentCorpus, seed: int, changes: Changes) -> tuple[Recipe, Path]:
    recipe = resolve_recipe(settings, corpus, seed, changes)
    words = [f"{key}={value}" for section in changes.values() for key, value in section.items()]
    name = "-".join([corpus.folder.name.split("-")[0], *words])[:80]
    return recipe, _run_folder(settings, recipe, f"{name}-seed{seed}")


def _run_folder(settings: Settings, recipe: Recipe, name: str) -> Path:
    return settings.work_folder / "runs" / f"{name}-{_key(recipe, settings.work_folder)[:10]}"


def read_metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind, such as "train" or "dev", in a run's metrics.jsonl."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


def vocabulary_size(settings: Settings, corpus: ExperimentCorpus, seed: int, changes: Changes = NO_CHANGES) -> int:
    """Return the vocabulary size of a variant whose training has at least started."""
    _, run = _recipe_and_run(settings, corpus, seed, changes)
    return load_tokenizer(run / "tokenizer", "joint").vocab_size


def sweep(settings: Settings, corpus: ExperimentCorpus, variants: Mapping[str, Changes]) -> list[dict[str, Any]]:
    """Train each variant with each seed. Return test BLEU, development loss and minutes of training of each run."""
    rows = []
    for seed, (name, changes) in product(settings.seeds, variants.items()):  # all variants with the first seed first
        trained = train_variant(settings, corpus, seed, changes)
        score = measure_bleu(settings, trained, corpus.test_pairs)
        minutes = trained.training_seconds / 60
        rows.append({"variant": name, "seed": seed, "bleu": score, "loss": trained.dev_loss, "minutes": minutes})
    return rows


def _key(recipe: Recipe, work: Path) -> str:
    """Hash the recipe and the contents of its data files and of its starting model, regardless of their paths."""
    sections = recipe.active_options()
    sections["data"].pop("folder", None)
    folder, hashes = Path(recipe.data.folder), ContentHashes(work / "inputs.json")
    for key in ("start_from", "start_decoder_from"):
        if start := getattr(recipe.training, key):
            sections["training"][key] = hashes.hash_file(Path(start) / "model.safetensors")
    corpora = [*recipe.data.train, *([recipe.data.dev] if recipe.data.dev else [])]
    return fingerprint(sections, [hashes.hash_file(folder / file) for corpus in corpora for file in corpus.files])


def load_bundle_on_device(folder: Path) -> Bundle:
    """Load the bundle of a model folder, onto a GPU if there is one."""
    bundle = Bundle.load(folder)
    bundle.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return bundle


def model_folders(settings: Settings, corpus: ExperimentCorpus) -> list[Path]:
    """Return the folder of the given model, or the folders of models trained with the common recipe, one per seed."""
    if settings.model_folder:
        return [settings.model_folder]
    return [train_variant(settings, corpus, seed).model_folder for seed in settings.seeds]


def encode_sources(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Encode source texts to token ids, including special tokens."""
    special = bundle.token_template.fill()
    return [special.add_to_source(ids) for ids in bundle.source_tokenizer.encode_batch(list(texts))]


def encode_pairs(bundle: Bundle, pairs: Sequence[TextPair]) -> list[tuple[list[int], list[int]]]:
    """Encode pairs of texts to token ids, including special tokens. Targets have no begin symbol, but end in EOS."""
    sources, targets = zip(*pairs, strict=True)
    prefix, ids = bundle.token_template.fill().target_prefix, bundle.target_tokenizer.encode_batch(list(targets))
    return list(zip(encode_sources(bundle, sources), [[*prefix, *target, EOS] for target in ids], strict=True))


def search_all(
    bundle: Bundle, sources: Sequence[str], options: DecodingOptions, max_length: Callable[[int], int]
) -> list[Hypothesis]:
    """Return the best hypothesis for each source.

    The model is not accelerated, so observers see its attention. ``max_length`` returns the maximum length of a target
    from the length of its source. Sources are not split.
    """
    prefix = bundle.token_template.fill().target_prefix
    requests = [
        Request(source=tuple(ids), limit=max_length(len(ids)), prefix=prefix) for ids in encode_sources(bundle, sources)
    ]
    best_by_index = dict[int, Hypothesis]()
    order = sorted(range(len(requests)), key=lambda index: len(requests[index].source))
    while order:
        rows = max(_DECODED_TOKENS // len(requests[order[-1]].source), 1)
        batch, order = order[-rows:], order[:-rows]
        chosen = [requests[index] for index in batch]
        best = search(bundle.model, chosen, options, SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK)))
        best_by_index |= {index: hypotheses[0] for index, hypotheses in zip(batch, best, strict=True)}
    return [best_by_index[index] for index in range(len(requests))]


def decode_target(bundle: Bundle, hypothesis: Hypothesis) -> str:
    """Return the text of a hypothesis, without forced tokens."""
    return bundle.target_tokenizer.decode(hypothesis.tokens[len(bundle.token_template.fill().target_prefix) :])


def greedy_translate(bundle: Bundle, sources: Sequence[str]) -> list[str]:
    """Translate greedily with a model that is not accelerated."""
    hypotheses = search_all(bundle, sources, _GREEDY, lambda length: length * 3 // 2 + 10)
    return [decode_target(bundle, hypothesis) for hypothesis in hypotheses]


def measure_bleu(settings: Settings, trained: TrainedRun, pairs: Sequence[TextPair]) -> float:
    """Return BLEU of greedy translations of ``pairs``. It is computed once per model and pairs, and then reused."""

    def compute() -> Numbers:
        settings.say(f"translating {len(pairs)} sources with {trained.run_folder.name}")
        texts = greedy_translate(load_bundle_on_device(trained.model_folder), [source for source, _ in pairs])
        score = bleu(texts, [target for _, target in pairs])
        return {"BLEU": score.value, "signature": score.signature}

    key = cache_key(settings, trained.model_folder, "bleu", list(pairs), _GREEDY)
    return float(settings.cached(key, compute)["BLEU"])


def cache_key(settings: Settings, model: Path, kind: str, *how: object) -> str:
    """Return the key for :meth:`Settings.cached` under which a result computed from a model folder is stored."""
    active = [part.active_options() if isinstance(part, Config) else part for part in how]
    return f"{kind}/{fingerprint(settings.content_hash(model), *active)}"
