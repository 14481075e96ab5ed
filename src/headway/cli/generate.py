"""``headway generate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headway.cli import options
from headway.cli.line_io import input_lines, one_line, output_file, show_progress

if TYPE_CHECKING:
    from headway.predict import Continuation, LanguageModel

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
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens added to a prompt.")] = 256,
    temperature: Annotated[
        float,
        typer.Option(min=0, help="Logits are divided by it: below 1 makes draws less random. 0 takes the best token."),
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from this many of the most probable tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw from the smallest set of tokens that together have this probability.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Draw from tokens with at least this fraction of the best token's probability.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(min=1, help="Divisor of the logits of tokens that were generated before.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="End a continuation before this string; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of continuations of each prompt.")] = 1,
    beam_size: Annotated[
        int, typer.Option(min=1, help="With --temperature 0: number of hypotheses kept at each step.")
    ] = 1,
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="With --temperature 0 and a beam: a phrase that the continuation must contain as whole words; 'a|b' "
            "requires one of the two. May be repeated."
        ),
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(help="A phrase that no continuation may contain; may be repeated.")
    ] = None,
    beyond_context: Annotated[
        Literal["stop", "slide"],
        typer.Option(help="At the end of the model's context: stop, or forget the first half of it and go on (slide)."),
    ] = "stop",
    precision: options.PrecisionOption = "auto",
) -> None:
    """Continue a text with a language model.

    One continuation of one prompt is printed as it is generated. With --input, each line is a prompt, and the line
    breaks of its continuation are printed as spaces.
    """
    from headway.errors import ConfigError
    from headway.predict import load_language_model

    if prompt is not None and source is not None:
        raise ConfigError("PROMPT and --input cannot be combined; give one of them")
    chosen = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "stop": tuple(stop or ()),
        "seed": seed,
        "n": n,
        "beam_size": beam_size,
        "include": tuple(include or ()),
        "ban": tuple(ban or ()),
        "beyond_context": beyond_context,
    }
    language_model = load_language_model(model, precision=precision)
    if source is not None:
        _continue_lines(language_model, source, output, format_, chosen)
        return
    with output_file(output) as file:
        if format_ == "text" and n == beam_size == 1:
            parts = language_model.stream(prompt or "", **chosen)
            first = next(parts, "")  # an invalid request fails here, before anything is written
            for part in chain([prompt or "", first], parts):
                file.write(part)
                file.flush()
            file.write("\n")
        else:
            found = language_model.generate(prompt or "", **chosen)
            file.write(_format(prompt or "", found, format_, lines=False))


def _continue_lines(
    model: LanguageModel, source: Path, output: Path | None, format_: options.OutputFormat, chosen: Mapping[str, Any]
) -> None:
    with show_progress("generating", source, to_stdout=output is None) as count_lines, output_file(output) as file:
        prompts = input_lines(source)
        while batch := list(islice(prompts, _PROMPTS_AT_ONCE)):
            for prompt, found in zip(batch, model.generate(batch, **chosen), strict=True):
                file.write(_format(prompt, found, format_, lines=True))
            count_lines(len(batch), sum(len(prompt.encode()) + 1 for prompt in batch))


def _format(prompt: str, found: Sequence[Continuation], format_: options.OutputFormat, *, lines: bool) -> str:
    """Return the output for a prompt. In text, each continuation is one line if ``lines`` is set."""
    if format_ == "json":
        record = {"prompt": prompt, "continuations": [asdict(one) for one in found]}
        return json.dumps(record, ensure_ascii=False) + "\n"
    texts = [prompt + one.text for one in found]
    return "".join((one_line(text) if lines else text) + "\n" for text in texts)
