"""``headway score``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import LineReport, process_lines, read_line_batches, read_text_batches
from headway.cli.loading import load_ensemble, open_language_model
from headway.corpus.lines import LineReader
from headway.errors import ConfigError, DataError, HeadwayError
from headway.text.visible_tokens import make_visible

if TYPE_CHECKING:
    from headway.predict import ScoredText, Source

GROUP = CommandGroup.RUN
_STANDARD = Path("-")


def score(
    model: options.ModelArgument,
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
    """Score given translations, log P(target | source), or texts, log P(text), in nats. Prints one line for each of
    them.

    Long texts are not split. A language model scores texts that are longer than its context in overlapping windows. The
    probability of the EOS token is included; --tokens shows EOS last. A masked language model hides each token in turn
    and does not predict EOS; the sum over the tokens is the text's pseudo-log-likelihood.
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
            raise ConfigError(f"{model} is a translation model; pass the sentences to score with {wants}")
        batches: Iterable[Sequence[Any]] = _pair_batches(source, target)
        name, parse = f"{source} and {target}", cast("_Parse", partial(_pairs, source, target))
        scorer, used = _pair_scorer(model, other_models, device, precision, to, from_)
    else:
        name, batches = read_text_batches(text, input_)
        parse = LineReader(name, "text").parse
        if capability == "continues":
            opened = open_language_model(model, device, precision)
            used, scorer = opened.precision, partial(_score_texts, partial(opened.score, precision="auto"))
        elif precision in ("auto", "float32"):
            used, scorer = "float32", partial(_score_texts, load(model, device=device).score)
        else:
            raise ConfigError(f"{model} can only score in float32; leave out --precision {precision}")
    counted, total = 0, 0.0

    def write(_: int, __: object, record: Mapping[str, Any]) -> str:
        if format_ == "json":
            return json.dumps(record, ensure_ascii=False) + "\n"
        return _format(record, with_tokens=tokens)

    report = LineReport(name, "stop", lambda _: ())
    lines = process_lines(batches, parse, report, write, job="scoring", source=source or input_, output=output)
    with closing(lines):
        for sources, results in lines:
            records = scorer(sources)
            results += records
            scored = [record for record in records if not isinstance(record, HeadwayError)]
            counted += sum(len(record["token_log_probabilities"]) for record in scored)
            total += math.fsum(record["log_probability"] for record in scored)
    perplexity = math.exp(min(-total / max(counted, 1), 700.0))
    unit = "pairs" if translates else "texts"
    which = "pseudo-perplexity" if capability == "fills" else "perplexity"
    ends = "" if capability == "fills" else ", EOS included"
    print(
        f"{report.num_lines:,} {unit}, {which} {perplexity:.4g} over {counted:,} tokens{ends}, in {used}",
        file=sys.stderr,
    )


_Parse = Callable[[Sequence[Any], int], Sequence[Any]]
_Record = dict[str, Any]  # the result for a line, in JSON
_Scorer = Callable[[Sequence[Any]], list[_Record | HeadwayError]]


def _pair_scorer(
    model: Path,
    other_models: list[Path] | None,
    device: options.Device,
    precision: options.Precision,
    to: str | None,
    from_: str | None,
) -> tuple[_Scorer, str]:
    """Return the function that scores pairs of texts, and the precision."""
    from headway.predict import load_translator

    first = partial(load_translator, model, device=device, precision=precision)
    translator = load_ensemble(first, other_models, device, precision)
    used = translator.precision

    def score_pairs(pairs: Sequence[tuple[str, str]]) -> list[_Record | HeadwayError]:
        results = translator.score_each(
            [source for source, _ in pairs],
            [target for _, target in pairs],
            target_language=to,
            source_language=from_,
            as_searched=used != "float32",
        )
        return [result if isinstance(result, HeadwayError) else asdict(result) for result in results]

    return score_pairs, used


def _score_texts(
    score: Callable[[list[str]], list[ScoredText]], lines: Sequence[Source]
) -> list[_Record | HeadwayError]:
    records: list[_Record | HeadwayError] = []
    for scored in score([line.text for line in lines]):
        ends = [] if scored.eos_log_probability is None else [scored.eos_log_probability]
        values = {"tokens": scored.tokens, "token_log_probabilities": [*scored.token_log_probabilities, *ends]}
        records.append({"log_probability": scored.log_probability, **values})
    return records


def _format(record: Mapping[str, Any], *, with_tokens: bool) -> str:
    names, values = record["tokens"], record["token_log_probabilities"]
    shown = zip((*names, "<eos>"), values, strict=False)
    detail = " ".join(f"{make_visible(name)}:{value:.4f}" for name, value in shown)
    return "\t".join([f"{record['log_probability']:.4f}", str(len(names)), *[detail] * with_tokens]) + "\n"


def _pair_batches(source: Path, target: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the pairs of lines of two files. The lines of standard input are processed as they arrive.

    Raises:
        ConfigError: Both are standard input.
        DataError: The files have different numbers of lines.
    """
    if source == target == _STANDARD:
        raise ConfigError("--source and --target cannot both be standard input; pass a file for one of them")
    leading, following = (target, source) if target == _STANDARD else (source, target)
    others, number = chain.from_iterable(read_line_batches(following)), 1
    for batch in read_line_batches(leading):
        partners = list(islice(others, len(batch)))
        if len(partners) < len(batch):
            raise _unequal(leading, following, number + len(partners))
        yield list(zip(partners, batch, strict=True) if leading == target else zip(batch, partners, strict=True))
        number += len(batch)
    if next(others, None) is not None:
        raise _unequal(following, leading, number)


def _unequal(longer: Path, shorter: Path, number: int) -> DataError:
    return DataError(f"{longer} has a line {number}, but {shorter} does not; expected a target for each source")


def _pairs(
    source: Path, target: Path, lines: Sequence[tuple[bytes, bytes]], first_line_number: int
) -> list[tuple[str, str]]:
    """Decode pairs of lines. The error for an invalid line names its file."""
    from headway.data.readers import decode_lines

    return [
        (decode_lines(of_source, source, number), decode_lines(of_target, target, number))
        for number, (of_source, of_target) in enumerate(lines, start=first_line_number - 1)
    ]
