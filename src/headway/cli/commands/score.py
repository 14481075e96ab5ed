"""``headway score``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import input_lines, output_file, show_progress
from headway.cli.loading import load_ensemble, open_language_model
from headway.errors import ConfigError, DataError, HeadwayError
from headway.text.visible_tokens import make_visible

if TYPE_CHECKING:
    from headway.predict import ScoredText

GROUP = CommandGroup.RUN
_BATCH_LINES = 2048  # number of lines read at a time, so that texts of similar length are scored together


def score(
    model: options.ModelFolder,
    text: Annotated[
        str | None, typer.Argument(help="For a language model: a text. Default: the lines of --input.")
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option(
            "-i", "--input", help="For a language model: input file, one text per line. Default: standard input."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="For a translation model: source text, one sentence per line.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="For a translation model: translations to score, one per line.")
    ] = None,
    output: options.OutputOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    device: options.DeviceOption = "auto",
    precision: options.MeasuredPrecisionOption = "float32",
    tokens: Annotated[bool, typer.Option("--tokens", help="Also write each token with its log-probability.")] = False,
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: log-probability and number of tokens; json: one object per line."),
    ] = "text",
) -> None:
    """Score given translations, log P(target | source), or texts, log P(text), in nats: one line for each.

    Long texts are not split; a language model reads those that are longer than its context in overlapping windows. The
    probability of the EOS token is included; --tokens shows EOS last. A masked language model hides each token in turn,
    and does not predict EOS: the sum over the tokens is the pseudo-log-likelihood of the text.
    """
    from headway.bundle import read_config
    from headway.tasks import load

    of_texts = {"TEXT": text, "--input": input_}
    of_pairs = {"--source": source, "--target": target, "--to": to, "--from": from_, "--with": other_models}
    capability = read_config(model).capability
    if capability == "labels":
        raise ConfigError(f"{model} is a classifier, which assigns no probability to texts; use headway classify")
    translates = capability == "translates"
    wants = "--source F --target F" if translates else "TEXT or --input F"
    if wrong := [name for name, value in (of_texts if translates else of_pairs).items() if value is not None]:
        raise ConfigError(f"{wrong[0]} does not apply to {model}; score with {wants}")
    if translates:
        if source is None or target is None:
            raise ConfigError(f"{model} is a translation model; give what it should score with {wants}")
        scored, used = _score_pairs(model, source, target, other_models, device, precision, to, from_)
    else:
        if text is not None and input_ is not None:
            raise ConfigError("TEXT and --input cannot be combined; give one of them")
        texts = [text] if text is not None else input_lines(input_)
        if capability == "continues":
            opened = open_language_model(model, device, precision)
            used, scorer = opened.precision, partial(opened.score, precision="auto")
        elif precision in ("auto", "float32"):
            used, scorer = "float32", load(model, device=device).score
        else:
            raise ConfigError(f"{model} has only one form, in float32; leave out --precision {precision}")
        scored = _score_texts(scorer, texts)
    read = source or input_
    done, counted, total = 0, 0, 0.0
    with show_progress("scoring", read, to_stdout=output is None) as count_lines, output_file(output) as file:
        for line, record in scored:
            done += 1
            counted += len(record["token_log_probabilities"])
            total += record["log_probability"]
            if format_ == "json":
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            else:
                file.write(_format(record, with_tokens=tokens))
            count_lines(1, len(line.encode(errors="replace")) + 1)
    perplexity = math.exp(min(-total / max(counted, 1), 700.0))
    unit = "pairs" if translates else "texts"
    which = "pseudo-perplexity" if capability == "fills" else "perplexity"
    ends = "" if capability == "fills" else ", EOS included"
    print(f"{done:,} {unit}, {which} {perplexity:.4g} over {counted:,} tokens{ends}, in {used}", file=sys.stderr)


_Scored = Iterator[tuple[str, dict[str, Any]]]  # each line of the input, and its record in JSON


def _score_pairs(
    model: Path,
    source: Path,
    target: Path,
    other_models: list[Path] | None,
    device: options.Device,
    precision: options.Precision,
    to: str | None,
    from_: str | None,
) -> tuple[_Scored, str]:
    """Return the scored pairs, and the precision."""
    from headway.predict import load_translator

    first = partial(load_translator, model, device=device, precision=precision)
    translator = load_ensemble(first, other_models, device, precision)
    used = translator.precision
    score = partial(translator.score_each, target_language=to, source_language=from_, as_searched=used != "float32")
    return _scored_pairs(score, source, target), used


def _scored_pairs(score: Callable[..., list[Any]], source: Path, target: Path) -> _Scored:
    pairs, done = _pairs(source, target), 0
    while batch := list(islice(pairs, _BATCH_LINES)):
        sources, targets = [pair[0] for pair in batch], [pair[1] for pair in batch]
        for line, scored in zip(sources, score(sources, targets), strict=True):
            done += 1
            if isinstance(scored, HeadwayError):
                raise scored.with_location(f"{source} and {target}, line {done}")
            yield line, asdict(scored)


def _score_texts(score: Callable[[list[str]], list[ScoredText]], texts: Iterable[str]) -> _Scored:
    remaining = iter(texts)
    while batch := list(islice(remaining, _BATCH_LINES)):
        for line, scored in zip(batch, score(batch), strict=True):
            ends = [] if scored.eos_log_probability is None else [scored.eos_log_probability]
            values = {"tokens": scored.tokens, "token_log_probabilities": [*scored.token_log_probabilities, *ends]}
            yield line, {"log_probability": scored.log_probability, **values}


def _format(record: Mapping[str, Any], *, with_tokens: bool) -> str:
    names, values = record["tokens"], record["token_log_probabilities"]
    shown = zip((*names, "<eos>"), values, strict=False)
    detail = " ".join(f"{make_visible(name)}:{value:.4f}" for name, value in shown)
    return "\t".join([f"{record['log_probability']:.4f}", str(len(names)), *[detail] * with_tokens]) + "\n"


def _pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    for number, (ours, theirs) in enumerate(zip_longest(input_lines(source), input_lines(target)), start=1):
        if ours is None or theirs is None:
            longer, shorter = (target, source) if ours is None else (source, target)
            raise DataError(f"{longer} has a line {number}, but {shorter} does not; expected a target for each source")
        yield ours, theirs
