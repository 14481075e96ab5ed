"""``headway translate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headway.cli.decoding import chosen_options
from headway.cli.lines import LineReader, Report, in_place
from headway.cli.text import byte_windows, one_line, output_file, place_of

if TYPE_CHECKING:
    from headway.decode.options import DecodingOptions
    from headway.errors import HeadwayError
    from headway.predict import Candidate, Source, TextTranslator, Translation, Translator

__all__ = [
    "From",
    "More",
    "Precision",
    "PrecisionOption",
    "ShortlistOption",
    "To",
    "WorkersOption",
    "load_models",
    "translate",
    "translators",
]

More = Annotated[
    list[Path] | None,
    typer.Option(
        "--with", help="Another model to average probabilities with, of the same tokenizers; may be repeated."
    ),
]
Precision = Literal["auto", "float32", "bfloat16", "int8"]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision", help="Of matrix products; auto: the fastest that this machine has. float32 is the reference."
    ),
]
ShortlistOption = Annotated[
    bool,
    typer.Option("--shortlist", help="Choose among the tokens that headway shortlist has learned for a sentence."),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        min=1,
        help="Processes that share a file, best one a core; each has one thread (or OMP_NUM_THREADS) and the whole "
        "model.",
    ),
]
To = Annotated[str | None, typer.Option("--to", help="The language to translate into, for a model that knows several.")]
From = Annotated[
    str | None, typer.Option("--from", help="The sources' language, for imported models that are told it.")
]


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str | None, typer.Argument(help="A text; default: the lines of the input.")] = None,
    source: Annotated[
        Path | None, typer.Option("-i", "--input", help="Source text, one sentence a line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; default: standard output.")
    ] = None,
    to: To = None,
    from_: From = None,
    more: More = None,
    prefix: Annotated[str, typer.Option(help="How every translation begins.")] = "",
    include: Annotated[
        list[str] | None,
        typer.Option(help="A phrase that every translation holds; 'a|b': one of them is enough. May be repeated."),
    ] = None,
    ban: Annotated[list[str] | None, typer.Option(help="A phrase that no translation holds; may be repeated.")] = None,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Of the --n-best, take the one that agrees most with the others by chrF.")
    ] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Also which word comes from which: 0-0 1-2, source word first.")
    ] = False,
    alignment_layer: Annotated[
        int | None,
        typer.Option(
            help="The decoder block whose attention aligns; default: the last, of four or more the last but one."
        ),
    ] = None,
    guard: Annotated[
        bool, typer.Option(help="Where the best hypothesis loops, copies or is cut short, take the next that does not.")
    ] = True,
    max_source_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="A longer text is split; default: the positions that the model has learned, or else 256."
        ),
    ] = None,
    precision: PrecisionOption = "auto",
    shortlist: ShortlistOption = False,
    workers: WorkersOption = 1,
    input_format: Annotated[
        Literal["text", "jsonl"],
        typer.Option(help="jsonl: an object a line with text and, if wanted, prefix, include, banned."),
    ] = "text",
    form: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--format",
            help="text: a line in, a line out (with --n-best: line number, score, text); json: an object a line.",
        ),
    ] = "text",
    on_error: Annotated[
        Literal["stop", "mark"],
        typer.Option(help="mark: a line that cannot be translated becomes an empty one, and is told at the end."),
    ] = "stop",
) -> None:
    """Translate a text, or a file line by line: one line in, one line out.

    Of a file some thousand lines are read at a time, so that sentences of like length are translated together; what
    comes from a pipe is translated as it arrives.
    """
    from headway.errors import ConfigError

    options = chosen_options()
    if text is not None and source is not None:
        raise ConfigError("a TEXT and --input: give one of them")
    if mbr and options.n_best == 1:
        raise ConfigError("--mbr chooses among candidates; ask for some with --n-best, such as --n-best 4")
    if alignment_layer is not None and not alignment:
        raise ConfigError("--alignment-layer chooses the block for --alignment; add that, or leave it out")
    load = partial(
        load_models,
        model,
        more,
        max_source_tokens=max_source_tokens,
        guard=guard,
        alignment_layer=alignment_layer,
        precision=precision,
        shortlist=shortlist,
    )
    place = "TEXT" if text is not None else place_of(source)
    reader = LineReader(place, input_format, prefix, include or (), ban or ())
    report = Report(place, on_error)
    windows = [[text.encode(errors="surrogateescape")]] if text is not None else byte_windows(source, workers)
    with translators(load, workers) as translator, output_file(output) as file:
        writer = _Writer(translator, form, listed=options.n_best > 1 and not mbr)

        def translated(sources: Sequence[Source]) -> list[Translation | HeadwayError]:
            found = translator.translate_each(
                sources, options, target_language=to, source_language=from_, alignment=alignment
            )
            return [_by_agreement(each, options) for each in found] if mbr else found

        for window in windows:
            first = report.lines + 1
            found = in_place(reader.sources(window, first), translated)
            report.add(found)
            file.writelines(writer.lines(number, each) for number, each in enumerate(found, start=first))
            file.flush()
    report.finish()


def load_models(
    model: Path,
    more: Sequence[Path] | None,
    *,
    max_source_tokens: int | None = None,
    guard: bool = True,
    alignment_layer: int | None = None,
    precision: Precision = "float32",
    shortlist: bool = False,
) -> Translator:
    """A model folder, or an ensemble of several."""
    from headway.predict import Translator, load_translator

    settings: dict[str, Any] = {
        "max_source_tokens": max_source_tokens,
        "guard": guard,
        "alignment_layer": alignment_layer,
        "precision": precision,
        "shortlist": shortlist,
    }
    first = load_translator(model, **settings)
    return Translator.ensemble([first, *(load_translator(other, precision=precision) for other in more or ())])


def translators(load: Callable[[], Translator], workers: int) -> AbstractContextManager[TextTranslator]:
    """What ``load`` makes, here, or in as many processes of their own."""
    from headway.predict import TranslatorPool

    return nullcontext(load()) if workers == 1 else TranslatorPool(load, workers)


def _by_agreement(translation: Translation | HeadwayError, options: DecodingOptions) -> Translation | HeadwayError:
    from headway.predict import Translation, minimum_bayes_risk

    sampled = options.sampling is not None
    return minimum_bayes_risk(translation, sampled=sampled) if isinstance(translation, Translation) else translation


class _Writer:
    """Translations as lines of output: text, or with ``listed`` all candidates, or JSON."""

    def __init__(self, translator: TextTranslator, form: Literal["text", "json"], *, listed: bool) -> None:
        self._translator, self._form, self._listed = translator, form, listed

    def lines(self, number: int, found: Translation | HeadwayError) -> str:
        """What is written for line ``number`` of the input, line ends included; an empty line for an error."""
        from headway.errors import HeadwayError

        if self._form == "json":
            whole = {"error": str(found)} if isinstance(found, HeadwayError) else self._as_dict(found)
            return json.dumps(whole, ensure_ascii=False) + "\n"
        if isinstance(found, HeadwayError):
            return f"{number}\t\t\n" if self._listed else "\n"
        if not self._listed:
            return self._as_text(found.candidates[0]) + "\n"
        return "".join(f"{number}\t{each.score:.4f}\t{self._as_text(each)}\n" for each in found.candidates)

    def _as_text(self, candidate: Candidate) -> str:
        line = one_line(candidate.text)
        if self._listed or candidate.alignment is not None:
            line = line.replace("\t", " ")  # tabs part the columns
        if candidate.alignment is None:
            return line
        return line + "\t" + " ".join(f"{i}-{j}" for i, j in self._translator.words(candidate).pairs)

    def _as_dict(self, translation: Translation) -> dict[str, Any]:
        candidates = [self._candidate_dict(each) for each in translation.candidates]
        return {"source": translation.source, **candidates[0], "candidates": candidates}

    def _candidate_dict(self, candidate: Candidate) -> dict[str, Any]:
        """Every field that has a value; with an alignment also that of words."""
        whole = {name: value for name, value in asdict(candidate).items() if value is not None}
        if candidate.alignment is not None:
            whole["words"] = asdict(self._translator.words(candidate))
        return whole
