"""``headway shortlist``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["shortlist"]


def shortlist(
    model: Annotated[Path, typer.Argument(help="A model folder, into which the shortlist is written.")],
    source: Annotated[Path, typer.Option(help="Source text, one sentence a line; the training text is best.")],
    target: Annotated[Path, typer.Option(help="Its translations, line by line.")],
    each: Annotated[int, typer.Option(min=1, help="Target tokens for each source token.")] = 50,
    always: Annotated[int, typer.Option(min=0, help="The most frequent target tokens, for every sentence.")] = 100,
) -> None:
    """Learn which target tokens a sentence may need, so that translate --shortlist chooses from these alone.

    Decoding spends much of its time on scores for the whole vocabulary. Of parallel text IBM model 1 learns what each
    source token becomes; a sentence's translation is then chosen among what its own tokens become, and the most
    frequent tokens. Where there is no parallel text, let the model translate some.
    """
    from headway.bundle import Bundle
    from headway.cli.line_io import input_lines
    from headway.errors import ConfigError
    from headway.interop.onnx import is_onnx_folder
    from headway.predict.shortlisting import learn_shortlist, shortlist_coverage, write_shortlist

    if is_onnx_folder(model):
        raise ConfigError(f"{model}: a model in ONNX has its whole vocabulary in its graph")
    bundle = Bundle.load(model)
    sources, targets = list(input_lines(source)), list(input_lines(target))
    found = learn_shortlist(bundle, sources, targets, each=each, always=always)
    write_shortlist(found, model)
    coverage = shortlist_coverage(bundle, found, sources, targets)
    whole = bundle.target_tokenizer.vocab_size
    print(f"{model}: a sentence of {source} chooses among {coverage.tokens:,.0f} of {whole:,} tokens, on average")
    print(f"they hold {coverage.covered:.1%} of the tokens of {target}")
