"""Translating the whole file of a test set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.decoding import decoding_options
from headway.cli.line_io import convert_all

if TYPE_CHECKING:
    from headway.predict import Translation, Translator
    from headway.predict.translation.options import TranslateKeywords


def translate_file(
    load: Callable[[], Translator], texts: list[str], source: Path, workers: int, languages: TranslateKeywords, job: str
) -> tuple[list[Translation], float]:
    """Translate the ``texts`` of a file with the command's decoding options.

    ``languages`` are the language arguments of ``Translator.translate``. ``job`` is the label of the progress bar.
    Returns the translations and the time in seconds.
    """
    from headway.hardware import keep_freed_memory
    from headway.predict import TranslateOptions, TranslatorPool

    keep_freed_memory()
    with TranslatorPool(load, workers) if workers > 1 else nullcontext(load()) as translator:
        begin = time.perf_counter()
        translate = partial(translator.translate_each, options=TranslateOptions.of(decoding_options(), languages))
        return convert_all(texts, translate, job=job, source=source, workers=workers), time.perf_counter() - begin
