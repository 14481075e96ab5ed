"""``headway quickstart``: train and score a model without user data and without a network connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.data.builtin import BuiltinCorpus, LocalizedPair, build_corpus, write_corpus
from headway.data.builtin.poem import read_poem
from headway.evaluation import Score, bleu, exact_match, tokenization_for
from headway.evaluation.compression import ppmd_bits_per_byte, xz_bits_per_byte
from headway.predict import LanguageModel, Translator
from headway.storage import atomic_write_text
from headway.tasks import parse_recipe, train
from headway.training.loop import Result
from headway.training.recipe import Recipe
from headway.training.report import Listener

_EXAMPLES = 5
_HELD_OUT = 0.1  # fraction of the poem that is not used for training the language model


@dataclass(frozen=True)
class CategoryScore:
    """The translations of one category of held-out texts, such as dates.

    Attributes:
        category: The name of the category.
        is_inferable: Whether the translations can be inferred from the training data.
        exact: The share of translations that are exactly right.
        pairs: Each held-out pair of the category with the model's translation.
    """

    category: str
    is_inferable: bool
    exact: Score
    pairs: tuple[tuple[LocalizedPair, str], ...]


@dataclass(frozen=True)
class QuickstartScores:
    """The scores of the model on held-out texts.

    Attributes:
        categories: The scores of each category. Categories that can be inferred come first.
        exact: The share of exactly right translations among all texts that can be inferred.
        bleu: BLEU of the translations of these texts.
    """

    categories: tuple[CategoryScore, ...]
    exact: Score
    bleu: Score


def train_on_localized_texts(
    source: str, target: str, folder: Path, *, size: int, steps: int, device: str, listener: Listener
) -> tuple[BuiltinCorpus, Result]:
    """Build a corpus of dates, numbers, measures and names from Unicode CLDR, and train a Transformer on it.

    Args:
        source: The source language, a locale of Unicode CLDR.
        target: The target language, a locale of Unicode CLDR.
        folder: The run folder. The corpus is written to data/ in it.
        size: Number of training pairs.
        steps: Number of training steps.
        device: The device to train on.
        listener: Receives messages and progress.
    """
    listener.on_message(
        f"building a corpus of dates, numbers, measures, names … in {source} and {target} from Unicode CLDR"
    )
    corpus = build_corpus(source, target, size=size, progress=listener.on_activity_progress)
    write_corpus(corpus, folder / "data", source, target)
    listener.on_message(f"{len(corpus.train):,} pairs to train on, such as:")
    seen: set[str] = set()
    for pair in corpus.train:
        if pair.category not in seen and len(seen) < _EXAMPLES:
            seen.add(pair.category)
            listener.on_message(f"    {pair.source}  →  {pair.target}")
    return corpus, train(translation_recipe(source, target, folder, steps, device), folder, listener=listener)


def score_by_category(translator: Translator, corpus: BuiltinCorpus) -> QuickstartScores:
    """Translate the held-out texts of a corpus, and score the translations of each category."""
    translations = translator.translate([pair.source for pair in corpus.test])
    groups: dict[tuple[str, bool], list[tuple[LocalizedPair, str]]] = {}
    for pair, translation in zip(corpus.test, translations, strict=True):
        groups.setdefault((pair.category, pair.inferable), []).append((pair, translation.text))
    categories = [
        CategoryScore(category, is_inferable, _exact(rows), tuple(rows))
        for (category, is_inferable), rows in sorted(groups.items(), key=lambda group: not group[0][1])
    ]
    inferable = [row for category in categories if category.is_inferable for row in category.pairs]
    hypotheses, references = [text for _, text in inferable], [pair.target for pair, _ in inferable]
    tokenization = tokenization_for(translator.bundle.task.target_language)
    return QuickstartScores(
        tuple(categories), _exact(inferable), bleu(hypotheses, references, tokenization=tokenization)
    )


def _exact(rows: list[tuple[LocalizedPair, str]]) -> Score:
    return exact_match([text for _, text in rows], [pair.target for pair, _ in rows])


def translation_recipe(source: str, target: str, folder: Path, steps: int, device: str) -> Recipe:
    """Return a recipe for a Transformer that learns the task in minutes on two cores."""
    files = {split: [f"{split}.{source}", f"{split}.{target}"] for split in ("train", "dev")}
    return parse_recipe(
        {
            "task": {"source_language": source, "target_language": target},
            "data": {
                "folder": str(folder / "data"),
                "train": [{"files": files["train"]}],
                "dev": {"files": files["dev"]},
                "max_tokens": 1024,
                "pool_size": 2048,
            },
            "tokenizer": {"vocab_size": 1500, "split_digits": True},
            "model": {"preset": "tiny", "norm": "pre", "dropout": 0.0},
            "optimizer": {"schedule": "linear", "learning_rate": 2.5e-3, "warmup_steps": 200, "clip_norm": 1.0},
            "training": {"steps": steps, "label_smoothing": 0.05, "device": device},
            "validation": {"every": max(steps // 4, 1), "metric": "loss"},
            "checkpoints": {"every": max(steps // 4, 1), "average": 0},
        },
        "quickstart",
    )


def train_on_poem(folder: Path, *, steps: int, device: str, listener: Listener) -> tuple[tuple[str, str], Result]:
    """Train a language model on Milton's Paradise Lost. Return the training and the held-out text, and the result."""
    poem = read_poem()
    cut = poem.rindex("\n", 0, round(len(poem) * (1 - _HELD_OUT))) + 1
    read, held_out = poem[:cut], poem[cut:]
    listener.on_message(
        f"John Milton, Paradise Lost (1667): {len(poem):,} characters, of which the last 10 % are held out"
    )
    for name, text in {"train.txt": read, "held-out.txt": held_out}.items():
        atomic_write_text(folder / "data" / name, text)
    return (read, held_out), train(language_model_recipe(folder, steps, device), folder, listener=listener)


def bits_per_byte(model: LanguageModel, read: str, held_out: str) -> dict[str, float]:
    """Return bits per byte of the held-out text, for the model and for compressors primed with the training text."""
    measured = model.perplexity([held_out])
    return {
        "model": measured.bits_per_byte,
        "xz": xz_bits_per_byte(read, held_out),
        "PPMd": ppmd_bits_per_byte(read, held_out),
    }


def language_model_recipe(folder: Path, steps: int, device: str) -> Recipe:
    """Return a recipe for a small character language model, which trains in minutes on two cores."""
    return parse_recipe(
        {
            "task": {"kind": "language_model"},
            "data": {
                "folder": str(folder / "data"),
                "train": [{"files": ["train.txt"]}],
                "dev": {"files": ["held-out.txt"]},
                "max_tokens": 2048,
            },
            "tokenizer": {"kind": "characters"},
            "model": {
                "d_model": 192,
                "num_heads": 3,
                "d_ff": 512,
                "decoder_layers": 4,
                "max_length": 256,
                "dropout": 0.0,
                "norm_kind": "rms",
                "bias": "none",
                "activation": "swiglu",
                "positions": "rotary",
            },
            "optimizer": {
                "schedule": "cosine",
                "learning_rate": 3e-3,
                "warmup_steps": 100,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "training": {"steps": steps, "device": device},
            "validation": {"every": max(steps // 4, 1)},
            "checkpoints": {"every": max(steps // 4, 1), "average": 0},
        },
        "quickstart",
    )
