"""``headway quickstart``: train and score a model, without any data of your own and without a network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.data.builtin import BuiltinCorpus, LocalizedPair
    from headway.predict import Translator
    from headway.training.recipe import Recipe

GROUP = CommandGroup.TRAIN


def quickstart(
    source: Annotated[
        str, typer.Option(help="Source language: any locale of Unicode CLDR, such as en, de, fr, ja.")
    ] = "en",
    target: Annotated[str, typer.Option(help="Target language.")] = "de",
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/quickstart-SOURCE-TARGET.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps. Default: 2,500; for a language model 1,200.", min=1)
    ] = None,
    size: Annotated[int, typer.Option(help="Number of training pairs to build.", min=1000)] = 40_000,
    language_model: Annotated[
        bool, typer.Option("--language-model", help="Train a language model on Milton's Paradise Lost instead.")
    ] = False,
    device: options.DeviceOption = "auto",
    fresh: options.FreshOption = False,
) -> None:
    """Build a small corpus from Unicode CLDR, train on it, score the model and show translations.

    With --language-model: train on a long poem, let the model write, and compare its bits per byte with compressors.
    """
    from headway.cli.progress import ProgressListener
    from headway.cli.training_runs import command_name, use_huge_pages

    use_huge_pages()
    from headway.data.builtin import build_corpus, write_corpus
    from headway.hardware import keep_freed_memory
    from headway.predict import load_translator
    from headway.tasks import train
    from headway.training.previous_run import move_previous_run_aside

    keep_freed_memory()
    if language_model:
        from headway.cli.quickstart_language_model import quickstart_language_model

        quickstart_language_model(run or Path("runs") / "quickstart-language-model", steps or 1200, device, fresh)
        return
    begin = time.perf_counter()
    folder = run or Path("runs") / f"quickstart-{source}-{target}"
    with ProgressListener() as listener, move_previous_run_aside(folder, fresh, listener.say):
        listener.say(
            f"building a corpus of dates, numbers, measures, names … in {source} and {target} from Unicode CLDR"
        )
        corpus = build_corpus(source, target, size=size, progress=listener.progress)
        write_corpus(corpus, folder / "data", source, target)
        _show_examples(corpus, listener.say)
        result = train(_recipe(source, target, folder, steps or 2500, device), folder, listener=listener)
        if result.interrupted:
            listener.say(f"stopped and saved after step {result.step:,}; run the same command again to resume")
            raise typer.Exit(130)
        if result.divergence is not None:
            raise DivergenceError(result.divergence)
        assert result.model_folder is not None
        listener.say(f"translating {len(corpus.test):,} held-out texts, whose sources are not in the training set")
        _show_scores(load_translator(result.model_folder, device=device, precision="float32"), corpus)
    print(f"\n{time.perf_counter() - begin:.0f} s in all. The model is in {result.model_folder}. Try:\n")
    print(f'    {command_name()} translate {result.model_folder} "{corpus.test[0].source}"')
    print(f"    {command_name()} info {result.model_folder}")
    sys.stdout.flush()


def _recipe(source: str, target: str, folder: Path, steps: int, device: options.Device) -> Recipe:
    """Return a recipe for a Transformer that learns the task in minutes on two cores."""
    from headway.tasks import parse_recipe

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


def _show_examples(corpus: BuiltinCorpus, say: Callable[[str], None]) -> None:
    say(f"{len(corpus.train):,} pairs to train on, such as:")
    seen: set[str] = set()
    for pair in corpus.train:
        if pair.category not in seen and len(seen) < 5:
            seen.add(pair.category)
            say(f"    {pair.source}  →  {pair.target}")


def _show_scores(translator: Translator, corpus: BuiltinCorpus) -> None:
    """Print a table with the rate of exact matches and an example for each category."""
    from rich.console import Console
    from rich.table import Table

    from headway.evaluation import bleu, exact_match, tokenization_for

    translations = translator.translate([pair.source for pair in corpus.test])
    groups: dict[str, list[tuple[LocalizedPair, str]]] = {}
    for pair, translation in zip(corpus.test, translations, strict=True):
        group = pair.category if pair.inferable else f"{pair.category} never seen (cannot be inferred)"
        groups.setdefault(group, []).append((pair, translation.text))
    inferable = [row for group in groups.values() for row in group if row[0].inferable]
    table = Table("held-out texts", "exact", "of", "example")
    for group, rows in sorted(groups.items(), key=lambda item: not item[1][0][0].inferable):
        exact = exact_match([text for _, text in rows], [pair.target for pair, _ in rows])
        table.add_row(group, f"{exact.value:.1f} %", str(len(rows)), f"{rows[0][0].source}  →  {rows[0][1]}")
    hypotheses, references = [text for _, text in inferable], [pair.target for pair, _ in inferable]
    total = exact_match(hypotheses, references)
    score = bleu(hypotheses, references, tokenization=tokenization_for(translator.bundle.task.target_language))
    table.add_section()
    table.add_row("all that can be inferred", f"{total.value:.1f} %", str(len(inferable)), str(score))
    Console(color_system=None).print(table)
