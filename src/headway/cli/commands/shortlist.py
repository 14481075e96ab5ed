"""``headway shortlist``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.command_groups import CommandGroup
from headway.cli.model_folders import MODEL

GROUP = CommandGroup.DEPLOY


def shortlist(
    model: Annotated[Path, typer.Argument(help="A model folder. The shortlist is written into it."), MODEL],
    source: Annotated[Path, typer.Option(help="Source text, one sentence per line; preferably the training text.")],
    target: Annotated[Path, typer.Option(help="Translations of the source text, line by line.")],
    each: Annotated[int, typer.Option(min=1, help="Number of target tokens to store for each source token.")] = 50,
    always: Annotated[
        int, typer.Option(min=0, help="Number of frequent target tokens that every sentence may use.")
    ] = 100,
) -> None:
    """Learn which target tokens a sentence may need, so that translate --shortlist can ignore all others.

    Decoding spends much of its time on computing scores for the whole vocabulary. IBM model 1 learns from parallel text
    which target tokens each source token is translated to. A sentence then uses only the target tokens learned for its
    own source tokens and the most frequent target tokens. If you have no parallel text, translate some text with the
    model.
    """
    from headway.bundle import Bundle
    from headway.cli.line_io import read_input_lines
    from headway.engine.shortlist_file import write_shortlist
    from headway.errors import ConfigError
    from headway.interop.onnx import DECODER_STEP_FILE
    from headway.predict.translation.shortlisting import learn_shortlist, shortlist_coverage

    if (model / DECODER_STEP_FILE).is_file():
        raise ConfigError(f"{model}: an ONNX model's graph contains its whole vocabulary; use the original model")
    bundle = Bundle.load(model)
    sources, targets = list(read_input_lines(source)), list(read_input_lines(target))
    learned = learn_shortlist(bundle, sources, targets, targets_per_source=each, num_always=always)
    write_shortlist(learned, model)
    coverage = shortlist_coverage(bundle, learned, sources, targets)
    whole = bundle.target_tokenizer.vocab_size
    print(f"{model}: sentences of {source} use {coverage.mean_tokens:,.0f} of {whole:,} target tokens on average")
    print(f"these cover {coverage.covered_share:.1%} of the tokens of {target}")
