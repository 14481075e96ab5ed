"""Translate the whole file of a test set, and count the glossary terms that translations satisfy."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.decoding import decoding_options
from headway.cli.line_io import convert_all

if TYPE_CHECKING:
    from headway.predict import Glossary, GlossaryTerm, Translation, Translator
    from headway.predict.translation.options import TranslateKeywords


_UNMET_SHOWN = 5  # number of unmet glossary terms to list


def translate_file(
    load: Callable[[], Translator],
    texts: list[str],
    source: Path,
    workers: int,
    languages: TranslateKeywords,
    job: str,
    glossary: Glossary | None = None,
) -> tuple[list[Translation], float]:
    """Translate the ``texts`` of a file with the command's decoding options.

    ``languages`` are the language arguments of ``Translator.translate``. ``job`` is the label of the progress bar.
    Returns the translations and the time in seconds.
    """
    from headway.calls.measurements import translate_texts
    from headway.hardware import keep_freed_memory
    from headway.predict import TranslateOptions

    keep_freed_memory()
    seconds = 0.0

    def convert(texts: Sequence[str], translate: Callable[[Sequence[str]], Iterable[Any]]) -> list[Any]:
        """Translate and measure the time, excluding the time to load the model."""
        nonlocal seconds
        begin = time.perf_counter()
        results = convert_all(texts, translate, job=job, source=source, workers=workers)
        seconds = time.perf_counter() - begin
        return results

    how = TranslateOptions.of(decoding_options(), languages)
    translations = translate_texts(load, texts, how, glossary=glossary, workers=workers, convert=convert)
    return translations, seconds


def count_terms(terms: Iterable[GlossaryTerm]) -> Counter[tuple[str, bool]]:
    """Count the glossary terms, keyed by the displayed term and whether the translation met it."""
    return Counter((f"{term.source} -> {'|'.join(term.targets)}", term.met) for term in terms)


def count_met_terms(used: Counter[tuple[str, bool]]) -> int:
    """Return the number of counted terms (see :func:`count_terms`) that were met."""
    return sum(count for (_, met), count in used.items() if met)


def summarize_terms(used: Counter[tuple[str, bool]]) -> str:
    """Return a line with the number of counted terms that were met, and the unmet terms."""
    unmet = Counter({term: count for (term, met), count in used.items() if not met})
    worst = [f"{term} ({count:,}x)" for term, count in unmet.most_common(_UNMET_SHOWN)]
    rest = ["..."] if len(unmet) > _UNMET_SHOWN else []
    details = f"; not met: {', '.join(worst + rest)}" if worst else ""
    return f"glossary terms met: {count_met_terms(used):,} of {used.total():,}{details}"


def report_terms(used: Counter[tuple[str, bool]]) -> None:
    """If any glossary terms applied, report on standard error how many were met and which were not."""
    if used:
        print(f"headway: {summarize_terms(used)}", file=sys.stderr)
