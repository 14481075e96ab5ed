"""``headway quickstart``: train and score a model without your own data and without a network connection."""

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
    from headway.calls.quickstart import QuickstartScores

GROUP = CommandGroup.TRAIN


def quickstart(
    source: Annotated[
        str, typer.Option(help="Source language: any locale of Unicode CLDR, such as en, de, fr, ja.")
    ] = "en",
    target: Annotated[str, typer.Option(help="Target language.")] = "de",
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/quickstart-SOURCE-TARGET.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps. Default: 2,500, or 1,200 for a language model.", min=1)
    ] = None,
    size: Annotated[int, typer.Option(help="Number of training pairs to build.", min=1000)] = 40_000,
    language_model: Annotated[
        bool, typer.Option("--language-model", help="Train a language model on Milton's Paradise Lost instead.")
    ] = False,
    device: options.DeviceOption = "auto",
    fresh: options.FreshOption = False,
) -> None:
    """Build a small corpus from Unicode CLDR, train on it, score the model and show translations.

    With --language-model: train on a long poem, print text that the model generates, and compare its bits per byte with
    text compressors.
    """
    from headway.calls.progress import ProgressListener
    from headway.cli.training_runs import command_name, use_huge_pages

    use_huge_pages()
    from headway.calls.quickstart import score_by_category, train_on_localized_texts
    from headway.hardware import keep_freed_memory
    from headway.predict import load_translator
    from headway.training.previous_run import move_previous_run_aside

    keep_freed_memory()
    if language_model:
        from headway.cli.quickstart_language_model import quickstart_language_model

        quickstart_language_model(run or Path("runs") / "quickstart-language-model", steps or 1200, device, fresh)
        return
    begin = time.perf_counter()
    folder = run or Path("runs") / f"quickstart-{source}-{target}"
    with ProgressListener() as listener, move_previous_run_aside(folder, fresh, listener.on_message):
        corpus, result = train_on_localized_texts(
            source, target, folder, size=size, steps=steps or 2500, device=device, listener=listener
        )
        if result.interrupted:
            listener.on_message(f"stopped and saved after step {result.step:,}; run the same command again to resume")
            raise typer.Exit(130)
        if result.divergence is not None:
            raise DivergenceError(result.divergence)
        assert result.model_folder is not None
        listener.on_message(
            f"translating {len(corpus.test):,} held-out texts, whose sources are not in the training set"
        )
        translator = load_translator(result.model_folder, device=device, precision="float32")
        _show(score_by_category(translator, corpus))
    print(f"\n{time.perf_counter() - begin:.0f} s in all. The model is in {result.model_folder}. Try:\n")
    print(f'    {command_name()} translate {result.model_folder} "{corpus.test[0].source}"')
    print(f"    {command_name()} info {result.model_folder}")
    sys.stdout.flush()


def _show(scores: QuickstartScores) -> None:
    """Print a table with the rate of exact matches and an example for each category."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held-out texts", "exact", "of", "example")
    for category in scores.categories:
        name = category.category if category.is_inferable else f"{category.category} never seen (cannot be inferred)"
        pair, translation = category.pairs[0]
        example = f"{pair.source}  →  {translation}"
        table.add_row(name, f"{category.exact.value:.1f} %", str(len(category.pairs)), example)
    inferable = sum(len(category.pairs) for category in scores.categories if category.is_inferable)
    table.add_section()
    table.add_row("all that can be inferred", f"{scores.exact.value:.1f} %", str(inferable), str(scores.bleu))
    Console(color_system=None).print(table)
