"""The child process of against_commit.py, which times inference calls with the code of one commit.

The parent sets PYTHONPATH to the source of this commit and writes one JSON object per line to standard input. For each
line, the child writes one line to standard output: the seconds that the call took. Loaded models stay in memory between
calls. Only public names are used (``headway.load``, ``headway.TranslatorPool``, ``headway.decode.DecodingOptions``),
with a fallback for arguments that ``headway.load`` does not have in every commit.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import headway
from headway.decode import DecodingOptions


def loader(folder: str, precision: str, shortlist: bool) -> partial[Any]:
    """Return the function that loads the translator: ``load_translator`` if it exists, otherwise ``headway.load``."""
    load: Any = getattr(importlib.import_module("headway.predict"), "load_translator", headway.load)
    return partial(load, folder, precision=precision, shortlist=shortlist)


def waiting_as_in_commands() -> AbstractContextManager[None]:
    """Return the context in which commands run: their threads wait passively while other processes are busy.

    Only for rows with busy neighbors: in other rows, the process of the other commit would count as one in its turn.
    """
    with suppress(ImportError):
        adapt_openmp_waiting: Any = importlib.import_module("headway.contention").adapt_openmp_waiting
        return cast(AbstractContextManager[None], adapt_openmp_waiting())
    return nullcontext()


@cache
def translator(folder: str, precision: str, shortlist: bool, workers: int) -> Any:
    """Load a translator once: in this process, or in a pool of processes if there are several workers."""
    load = loader(folder, precision, shortlist)
    return load() if workers == 1 else headway.TranslatorPool(load, workers)


@cache
def classifier(folder: str) -> Any:
    """Load a classifier once."""
    return headway.load(folder)


def translate(
    texts: list[str], batch: int, options: dict[str, Any], folder: str, precision: str, shortlist: bool, workers: int
) -> float:
    """Translate ``texts`` in lists of ``batch`` and return the seconds."""
    model, chosen = translator(folder, precision, shortlist, workers), DecodingOptions(**options)
    begin = time.perf_counter()
    for start in range(0, len(texts), batch):
        model.translate(texts[start : start + batch], chosen)
    return time.perf_counter() - begin


def classify(texts: list[str], folder: str) -> float:
    """Classify ``texts`` in one call and return the seconds."""
    model = classifier(folder)
    begin = time.perf_counter()
    model.classify(texts)
    return time.perf_counter() - begin


def documents(sources: list[str], folder: str | None) -> float:
    """Read and write documents, translated with the model in ``folder`` if there is one. Return the processor time."""
    from headway.documents import fill_document, translate_document

    model = None if folder is None else translator(folder, "auto", shortlist=False, workers=1)
    begin = time.process_time()
    for source in map(Path, sources):
        target = source.with_name(f"{os.getpid()}{source.suffix}")
        if model is None:
            fill_document(lambda texts: [text.text for text in texts], source, target)
        else:
            translate_document(model, source, target)
    return time.process_time() - begin


def main() -> None:
    """Process calls until standard input ends."""
    importlib.import_module("headway.hardware").keep_freed_memory()  # as commands do
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output goes to standard error, so that only answers are on standard output
    with waiting_as_in_commands() if "--beside" in sys.argv else nullcontext():
        for line in sys.stdin:
            call = json.loads(line)
            functions = {"translate": translate, "classify": classify, "documents": documents}
            function: Any = functions[call.pop("call")]
            seconds = function(**call)
            print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
