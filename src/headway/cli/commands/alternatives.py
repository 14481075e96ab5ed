"""``headway alternatives``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import output_file, read_text_or_stdin
from headway.cli.loading import load_ensemble
from headway.text.visible_tokens import make_visible

GROUP = CommandGroup.RUN


def alternatives(
    model: options.ModelArgument,
    source: Annotated[str | None, typer.Argument(help="The text to translate. Default: standard input.")] = None,
    prefix: Annotated[str, typer.Argument(help="The beginning of the translation. Default: none.")] = "",
    count: Annotated[int, typer.Option("-n", "--count", help="Number of tokens to list.", min=1)] = 10,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    device: options.DeviceOption = "auto",
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: a token and its probability per line; json: log-probabilities in nats."),
    ] = "text",
) -> None:
    """List the most probable next tokens after the beginning of a translation.

    To find out why a word was not chosen, pass the translation up to that word as PREFIX. If the first token of the
    word is not in the list, it is less probable than all listed tokens. "<eos>" is the end of the translation. A space
    is shown as ␣.
    """
    from headway.predict import load_translator

    first = partial(load_translator, model, device=device, precision="float32")
    translator = load_ensemble(first, other_models, device, "float32")
    tokens = translator.alternatives(
        read_text_or_stdin(source), prefix, count=count, target_language=to, source_language=from_
    )
    with output_file(None) as file:
        for alternative in tokens:
            if format_ == "json":
                file.write(json.dumps(asdict(alternative), ensure_ascii=False) + "\n")
            else:
                file.write(f"{make_visible(alternative.token)}\t{math.exp(alternative.log_probability):.4f}\n")
