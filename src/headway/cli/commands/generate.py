"""``headway generate``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import GenerationCommand, generation_options
from headway.cli.line_io import (
    LineReport,
    input_name,
    is_terminal_input,
    output_file,
    process_lines,
    read_text_batches,
)
from headway.cli.loading import open_language_model
from headway.cli.traces import TraceOption, format_traces, traces_as_json
from headway.corpus.lines import LineReader, one_line
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.predict import Continuation, LanguageModel, Source, TracedContinuations

GROUP = CommandGroup.RUN
COMMAND_CLASS = GenerationCommand
_PROMPTS_AT_ONCE = 64


def generate(
    model: options.ModelArgument,
    prompt: Annotated[
        str | None, typer.Argument(help="The beginning of the text. Default: the lines of --input.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--input",
            help="Input file, one prompt per line. Default: standard input, or no prompt if it is a terminal or empty.",
        ),
    ] = None,
    output: options.OutputOption = None,
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: prompt and continuation; json: one object per prompt, with tokens."),
    ] = "text",
    trace: TraceOption = False,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
) -> None:
    """Continue a text with a language model.

    A single continuation of a single prompt is printed while it is generated. Otherwise each line of the input is a
    prompt, and line breaks in its continuation are printed as spaces. Lines from a pipe are continued as they arrive.
    """
    chosen = generation_options(model)
    _, batches = read_text_batches(prompt, source, argument="PROMPT", batch_lines=_PROMPTS_AT_ONCE)
    language_model = open_language_model(model, device, precision)
    if prompt is None and source is None:
        first = [] if is_terminal_input(None) else next(iter(batches), [])
        prompt, batches = (None, chain([first], batches)) if first else ("", [])
    if prompt is None:
        _continue_lines(language_model, batches, source, output, format_, chosen, trace=trace)
        return
    if trace:
        from headway.predict import trace_generation

        traced = trace_generation(language_model, prompt, **chosen)
        with output_file(output) as file:
            file.write(_format_trace(prompt, traced, format_))
        return
    with output_file(output) as file:
        complete = language_model.generation_options(**chosen)
        if format_ == "text" and complete.n == complete.beam_size == 1:
            parts = language_model.stream(prompt, **chosen)
            begin = next(parts, "")  # raises the error of an invalid request, before anything is written
            for part in chain([prompt, begin], parts):
                file.write(part)
                file.flush()
            file.write("\n")
        else:
            file.write(_format(prompt, language_model.generate(prompt, **chosen), format_, lines=False))


def _continue_lines(
    model: LanguageModel,
    batches: Iterable[Sequence[bytes | str]],
    source: Path | None,
    output: Path | None,
    format_: options.OutputFormat,
    chosen: Mapping[str, Any],
    *,
    trace: bool,
) -> None:
    def write(number: int, line: Source | HeadwayError, result: Any) -> str:
        assert not isinstance(line, HeadwayError)  # the line report raises errors before this is called
        if not trace:
            return _format(line.text, result, format_, lines=True)
        return "\n" * (number > 1 and format_ == "text") + _format_trace(line.text, result, format_)

    def continue_each(prompts: list[str]) -> list[Any]:
        if trace:
            from headway.predict import trace_generation

            return [trace_generation(model, prompt, **chosen) for prompt in prompts]
        return list(model.generate(prompts, **chosen))

    def prompt_error(prompt: str) -> HeadwayError | None:
        try:
            model.check_prompt(prompt, **chosen)
        except HeadwayError as error:
            return error
        return None

    name = input_name(source)
    report, reader = LineReport(name, "stop", lambda _: ()), LineReader(name, "text")
    lines = process_lines(batches, reader.parse, report, write, job="generating", source=source, output=output)
    with closing(lines):
        for sources, results in lines:
            prompts = [line.text for line in sources]
            errors = list(map(prompt_error, prompts))
            results += errors if any(errors) else continue_each(prompts)


def _format(prompt: str, continuations: Sequence[Continuation], format_: options.OutputFormat, *, lines: bool) -> str:
    """Return the output for a prompt. In text, each continuation is one line if ``lines`` is set."""
    if format_ == "json":
        record = {"prompt": prompt, "continuations": [asdict(one) for one in continuations]}
        return json.dumps(record, ensure_ascii=False) + "\n"
    texts = [prompt + one.text for one in continuations]
    return "".join((one_line(text) if lines else text) + "\n" for text in texts)


def _format_trace(prompt: str, traced: TracedContinuations, format_: options.OutputFormat) -> str:
    """Return the output for a prompt, including the search traces."""
    if format_ == "json":
        record = {"prompt": prompt, "continuations": [asdict(one) for one in traced.continuations]}
        return json.dumps({**record, "trace": traces_as_json(traced.searches)}, ensure_ascii=False) + "\n"
    several = len(traced.continuations) > 1
    names = (f"Text {number}" if several else "Text" for number in range(1, len(traced.continuations) + 1))
    return format_traces(
        traced.searches, {name: prompt + one.text for name, one in zip(names, traced.continuations, strict=True)}
    )
