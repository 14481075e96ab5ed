"""``headway rerank``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import output_file, read_input_lines
from headway.cli.model_folders import MODEL
from headway.errors import ConfigError, DataError

if TYPE_CHECKING:
    from headway.predict import NoisyChannelWeights, RankedText
    from headway.predict.reranking.noisy_channel import NoisyChannelFeatures

    CandidateList = tuple[int, list[float], list[str]]  # line number, scores, texts

GROUP = CommandGroup.RUN


def rerank(
    candidates: Annotated[
        Path, typer.Option(help="Output of translate --n-best: line number, score and text, separated by tabs.")
    ],
    models: Annotated[list[Path] | None, typer.Argument(metavar="[MODEL]...", help="Model folders."), MODEL] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source text, one sentence per line; required with models.")
    ] = None,
    output: options.OutputOption = None,
    weight: Annotated[
        list[float] | None,
        typer.Option(help="Weight of a model; may be repeated, once for each model, in order. Default: 1."),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Exponent of the length penalty; 0 ranks by probability. Default: 0.6.")
    ] = None,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Rank by agreement with the other candidates (chrF) instead of models.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Write only the best candidate of each line, without number and score.")
    ] = False,
    language_model: Annotated[
        Path | None,
        typer.Option(help="Language model of the target language, trained on one-line documents."),
        MODEL,
    ] = None,
    channel: Annotated[Path | None, typer.Option(help="Translation model for the reverse direction."), MODEL] = None,
    language_model_weight: Annotated[
        float | None, typer.Option(help="Weight of the language model's log-probability.")
    ] = None,
    channel_weight: Annotated[float | None, typer.Option(help="Weight of the channel's log-probability.")] = None,
    length_weight: Annotated[
        float | None, typer.Option(help="With --language-model or --channel: weight of the number of tokens.")
    ] = None,
    tune: Annotated[
        Path | None,
        typer.Option(
            help="With --language-model or --channel: references. Tune the weights on the lines with odd numbers, and "
            "report BLEU on the others."
        ),
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    device: options.DeviceOption = "auto",
    format_: Annotated[
        options.OutputFormat, typer.Option("--format", help="text: like the input; json: one object per line.")
    ] = "text",
) -> None:
    """Sort candidate translations, best first, by the scores of one or more models or by their agreement with each
    other.

    With models, the score is the weighted sum of their log-probabilities, each divided by the length penalty. With
    --language-model or --channel, it is log p(y|x) of a single model, plus the weighted log-probabilities log p(y) and
    log p(x|y) and the weighted number of tokens. With --mbr (minimum Bayes risk), the score is the mean chrF against
    all candidates, weighted by exp(score).
    """
    if mbr == bool(models):
        raise ConfigError("pass either one or more model folders, or --mbr")
    noisy = {"--language-model": language_model, "--channel": channel}
    weights = {
        "--language-model-weight": language_model_weight, "--channel-weight": channel_weight,
        "--length-weight": length_weight,
    }  # fmt: skip
    of_models = {"--weight": weight or None, "--length-penalty": length_penalty}
    _check_noisy_channel(models or [], noisy, weights, tune, of_models)
    if best and format_ == "json":
        raise ConfigError("--best writes lines of text; leave it out with --format json, which lists the best first")
    from headway.predict import rank_by_agreement

    lists = list(_lists(candidates, every_line=best))
    if mbr:
        others = {**of_models, "--source": source, "--to": to, "--from": from_}
        if given := [name for name, value in others.items() if value is not None]:
            raise ConfigError(
                f"{given[0]} applies to models, but --mbr compares the candidates with each other; leave it out"
            )
        ranked = [rank_by_agreement(texts, scores) for _, scores, texts in lists]
    elif source is None:
        raise ConfigError("models need the source text; pass its file with --source")
    else:
        sources, folders = list(read_input_lines(source)), models or []
        for number, _, _ in lists:
            if not 1 <= number <= len(sources):
                raise DataError(f"a candidate is for line {number}, but {source} has {len(sources):,} lines")
        line_sources = [sources[number - 1] for number, *_ in lists]
        languages = {"target_language": to, "source_language": from_}
        if language_model is None and channel is None:
            ranked = _rank_by_models(lists, line_sources, folders, weight, length_penalty, device, languages)
        else:
            ranked = _rank_by_noisy_channel(lists, line_sources, folders[0], noisy, weights, tune, device, languages)
    with output_file(output) as file:
        for (number, _, _), line_candidates in zip(lists, ranked, strict=True):
            if format_ == "json":
                rows = [{"text": candidate.text, "score": candidate.score} for candidate in line_candidates]
                file.write(json.dumps({"line": number, **rows[0], "candidates": rows}, ensure_ascii=False) + "\n")
            elif best:
                file.write(line_candidates[0].text + "\n")
            else:
                file.writelines(f"{number}\t{candidate.score:.4f}\t{candidate.text}\n" for candidate in line_candidates)


def _rank_by_models(
    lists: Sequence[CandidateList],
    line_sources: Sequence[str],
    folders: Sequence[Path],
    weights: Sequence[float] | None,
    length_penalty: float | None,
    device: options.Device,
    languages: dict[str, str | None],
) -> list[list[RankedText]]:
    from headway.decode import DecodingOptions
    from headway.predict import load_translator, rank_by_models

    return rank_by_models(
        [load_translator(folder, device=device) for folder in folders],
        line_sources,
        [texts for *_, texts in lists],
        weights=weights or [1.0] * len(folders),
        alpha=DecodingOptions().length_penalty if length_penalty is None else length_penalty,
        **languages,
    )


def _rank_by_noisy_channel(
    lists: Sequence[CandidateList],
    line_sources: Sequence[str],
    folder: Path,
    noisy: Mapping[str, Path | None],
    weights: Mapping[str, float | None],
    tune: Path | None,
    device: options.Device,
    languages: dict[str, str | None],
) -> list[list[RankedText]]:
    """Rank with the models of ``noisy`` and their ``weights``, which are tuned if ``tune`` names references."""
    from headway.bundle import read_config
    from headway.predict import NoisyChannelWeights, load_translator, noisy_channel_features, rank_by_noisy_channel
    from headway.tasks import load

    language_model, channel = noisy.values()
    texts = [texts for *_, texts in lists]
    features = noisy_channel_features(
        load_translator(folder, device=device),
        line_sources,
        texts,
        language_model=None if language_model is None else load(language_model, device=device),
        channel=None if channel is None else load_translator(channel, device=device),
        **languages,
    )
    if tune is None:
        values = [value or 0.0 for value in weights.values()]
        chosen = NoisyChannelWeights(**dict(zip(NoisyChannelWeights.model_fields, values, strict=True)))
    else:
        language = languages["target_language"] or read_config(folder).target_language
        chosen = _tune([number for number, *_ in lists], texts, features, tune, list(weights), language)
    return rank_by_noisy_channel(texts, features, chosen)


def _check_noisy_channel(
    models: Sequence[Path],
    noisy: Mapping[str, Path | None],
    weights: Mapping[str, float | None],
    tune: Path | None,
    others: Mapping[str, object],
) -> None:
    """Reject options that cannot be combined."""
    from headway.bundle import read_config

    given = [name for name, value in {**noisy, **weights, "--tune": tune}.items() if value is not None]
    if not any(noisy.values()):
        if given:
            raise ConfigError(f"{given[0]} needs --language-model or --channel")
        return
    if len(models) != 1:
        raise ConfigError(
            f"{given[0]} needs exactly one MODEL, which translates in the forward direction; got {len(models)}"
        )
    if wrong := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"{wrong[0]} does not apply with {given[0]}, which has its own weights; leave it out")
    for name, folder in noisy.items():
        option = f"{name}-weight"
        if folder is None and weights[option] is not None:
            raise ConfigError(f"{option} needs {name}")
        if folder is not None and (weights[option] is None) == (tune is None):
            raise ConfigError(f"{name}: pass either its weight ({option}) or references for tuning it (--tune F)")
    if tune is not None and weights["--length-weight"] is not None:
        raise ConfigError("--length-weight: --tune determines this weight; leave it out")
    folder = noisy["--language-model"]
    if folder is not None and read_config(folder).capability in ("translates", "labels"):
        raise ConfigError(f"--language-model: {folder} is not a language model")


def _tune(
    numbers: Sequence[int],
    candidates: Sequence[Sequence[str]],
    features: Sequence[NoisyChannelFeatures],
    references: Path,
    names: Sequence[str],
    target_language: str,
) -> NoisyChannelWeights:
    """Tune the weights on the odd lines, and report BLEU on both halves. The baseline is the first candidate."""
    from headway.calls.reranking import tune_on_odd_lines

    truth = list(read_input_lines(references))
    if wrong := [number for number in numbers if number > len(truth)]:
        raise DataError(f"a candidate is for line {wrong[0]}, but {references} has {len(truth):,} lines")
    if len({number % 2 for number in numbers}) < 2:
        raise DataError(f"{references}: expected candidates for lines with odd and with even numbers")
    expected = [truth[number - 1] for number in numbers]
    tuned = tune_on_odd_lines(numbers, candidates, features, expected, target_language)
    values = tuned.weights.model_dump().values()
    print("weights:", *(f"{name} {value:g}" for name, value in zip(names, values, strict=True)), file=sys.stderr)
    for name, half in {"tuned on odd lines": tuned.odd_lines, "held-out even lines": tuned.even_lines}.items():
        print(
            f"{name}: BLEU {half.bleu_before:.2f} -> {half.bleu_after:.2f}; difference {half.difference}",
            file=sys.stderr,
        )
    return tuned.weights


def _lists(path: Path, *, every_line: bool) -> Iterator[CandidateList]:
    """Yield the number of each source line, and the scores and texts of its candidates.

    If ``every_line`` is True, every source line must have candidates.
    """
    before: int | None = None
    for expected, (number, rows) in enumerate(groupby(_rows(path), key=itemgetter(0)), start=1):
        if before is not None and number < before:
            raise DataError(
                f"{path}: candidates for line {number} follow candidates for line {before}; sort with sort -n -s -k 1,1"
            )
        if every_line and number != expected:
            raise DataError(
                f"{path}: expected candidates for line {expected}, got candidates for line {number}; --best writes one "
                "line for each source line, counted from 1"
            )
        before = number
        _, scores, texts = zip(*rows, strict=True)
        yield number, list(scores), list(texts)


def _rows(path: Path) -> Iterator[tuple[int, float, str]]:
    for place, line in enumerate(read_input_lines(path), start=1):
        cells = line.split("\t")
        try:
            number, score, text = int(cells[0]), float(cells[1] or "-inf"), cells[2]
            if math.isnan(score) or score == math.inf:
                raise ValueError(score)
        except (ValueError, IndexError):
            raise DataError(
                f"{path}, line {place}: expected line number, score and text, separated by tabs, as translate "
                f"--n-best writes them; got {line[:40]!r}"
            ) from None
        yield number, score, text
