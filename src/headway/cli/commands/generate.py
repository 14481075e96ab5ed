"""``headway generate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import GenerationCommand, generation_options
from headway.cli.line_io import input_lines, input_name, one_line, output_file, show_progress
from headway.cli.loading import open_language_model
from headway.errors import ConfigError, HeadwayError

if TYPE_CHECKING:
    from headway.predict import Continuation, LanguageModel

GROUP = CommandGroup.RUN
COMMAND_CLASS = GenerationCommand
_PROMPTS_AT_ONCE = 64


def generate(
    model: options.ModelFolder,
    prompt: Annotated[str | None, typer.Argument(help="The beginning of the text. Default: nothing.")] = None,
    source: Annotated[Path | None, typer.Option("-i", "--input", help="Input file, one prompt per line.")] = None,
    output: options.OutputOption = None,
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: prompt and continuation; json: one object per prompt, with tokens."),
    ] = "text",
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
) -> None:
    """Continue a text with a language model.

    One continuation of one prompt is printed as it is generated. With --input, each line is a prompt, and the line
    breaks of its continuation are printed as spaces.
    """
    if prompt is not None and source is not None:
        raise ConfigError("PROMPT and --input cannot be combined; give one of them")
    chosen = generation_options()
    language_model = open_language_model(model, device, precision)
    if source is not None:
        _continue_lines(language_model, source, output, format_, chosen)
        return
    with output_file(output) as file:
        if format_ == "text" and chosen.get("n", 1) == chosen.get("beam_size", 1) == 1:
            parts = language_model.stream(prompt or "", **chosen)
            first = next(parts, "")  # an invalid request fails here, before anything is written
            for part in chain([prompt or "", first], parts):
                file.write(part)
                file.flush()
            file.write("\n")
        else:
            continuations = language_model.generate(prompt or "", **chosen)
            file.write(_format(prompt or "", continuations, format_, lines=False))


def _continue_lines(
    model: LanguageModel, source: Path, output: Path | None, format_: options.OutputFormat, chosen: Mapping[str, Any]
) -> None:
    with show_progress("generating", source, to_stdout=output is None) as count_lines, output_file(output) as file:
        prompts, done = input_lines(source), 0
        while batch := list(islice(prompts, _PROMPTS_AT_ONCE)):
            for number, prompt in enumerate(batch, start=done + 1):
                try:
                    model.check_prompt(prompt, **chosen)
                except HeadwayError as error:
                    raise error.with_location(f"{input_name(source)}, line {number}") from None
            for prompt, continuations in zip(batch, model.generate(batch, **chosen), strict=True):
                file.write(_format(prompt, continuations, format_, lines=True))
            done += len(batch)
            count_lines(len(batch), sum(len(prompt.encode()) + 1 for prompt in batch))


def _format(prompt: str, found: Sequence[Continuation], format_: options.OutputFormat, *, lines: bool) -> str:
    """Return the output for a prompt. In text, each continuation is one line if ``lines`` is set."""
    if format_ == "json":
        record = {"prompt": prompt, "continuations": [asdict(one) for one in found]}
        return json.dumps(record, ensure_ascii=False) + "\n"
    texts = [prompt + one.text for one in found]
    return "".join((one_line(text) if lines else text) + "\n" for text in texts)
