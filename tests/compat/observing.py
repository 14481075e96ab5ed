"""The results that tests of old artifacts compare: of a model folder, a run folder or an exported folder.

:mod:`record` stores these observations beside the folders that it records, and :mod:`test_recorded` makes them again.
Both use only public entry points (the command line and ``headway.load``), so that the observations do not depend on
internals of the package.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import headway
from headway import cli
from headway.interop.exporting import ExportFormat
from headway.predict import LanguageModel, MaskedLanguageModel, load_language_model

RECORDED = Path(__file__).parent / "recorded"
EXPORT_FORMATS = get_args(ExportFormat)
BEAMS = (1, 4)


def command(*words: object) -> tuple[int, str]:
    """Run ``headway WORDS`` in this process. Return its exit code and what it wrote to standard error."""
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["headway", *map(str, words)]),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")  # a user sees warnings as lines of text; they stop nothing
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


def checked_command(*words: object) -> None:
    """Run ``headway WORDS`` in this process, and check that it succeeds."""
    code, said = command(*words)
    assert code == 0, f"headway {' '.join(map(str, words))} ended with {code}: {said}"


def observe(folder: Path, texts: dict[str, Any]) -> dict[str, Any]:
    """Return the results of the model in ``folder``, in float32.

    Args:
        folder: A model folder, or a folder exported to ONNX.
        texts: For a translator ``sources`` and ``targets``, and ``to`` if it has several target languages; for other
            models ``sources``.
    """
    model = headway.load(folder, device="cpu")
    if isinstance(model, LanguageModel):
        return _observe_language_model(folder, texts["sources"])
    if isinstance(model, MaskedLanguageModel):
        fillings = [model.fill(f"{text[: len(text) // 2]}[MASK]", top=10**9) for text in texts["sources"][:2]]
        return {
            "scores": [list(one.token_log_probabilities) for one in model.score(texts["sources"])],
            "next": [_by_name((" ".join(one.words), math.log(one.probability)) for one in some) for some in fillings],
        }
    if isinstance(model, headway.Classifier):
        found = model.classify(texts["sources"])
        return {"log_probabilities": [{k: math.log(p) for k, p in one.probabilities.items()} for one in found]}
    language = {"target_language": texts["to"]} if "to" in texts else {}
    scored = model.score(texts["sources"], texts["targets"], **language)
    # All next tokens of an empty prefix, and of the first half of a target: log-probabilities are logits, normalized.
    halves = [("", texts["sources"][0]), (texts["targets"][1][: len(texts["targets"][1]) // 2], texts["sources"][1])]
    following = [model.alternatives(source, prefix, count=10**9, **language) for prefix, source in halves]
    return {
        "translations": {str(beam): _translations(folder, texts, beam) for beam in BEAMS},
        "scores": [list(one.token_log_probabilities) for one in scored],
        "next": [_by_name((one.token, one.log_probability) for one in some) for some in following],
    }


def _translations(folder: Path, texts: dict[str, Any], beam: int) -> list[dict[str, Any]]:
    language = ("--to", texts["to"]) if "to" in texts else ()
    options = (
        *("--precision", "float32", "--beam-size", beam, "--max-length", 24, "--no-guard", "--format", "json"),
        *("--normalization", "gnmt", "--length-penalty", 0.6, "--stopping", "exact"),  # not those of the model
    )
    plain = "--no-protect"  # the results are those of the model alone
    with tempfile.TemporaryDirectory() as aside:
        lines, output = Path(aside) / "sources.txt", Path(aside) / "found.jsonl"
        lines.write_text("".join(text + "\n" for text in texts["sources"]), encoding="utf-8")
        checked_command("translate", folder, "-i", lines, "-o", output, plain, *options, *language)
        found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return [{"text": one["text"], "score": one["score"]} for one in found]


def _observe_language_model(folder: Path, texts: list[str]) -> dict[str, Any]:
    model = load_language_model(folder, device="cpu", precision="float32")
    predicted = [model.predict_tokens(text, count=10**9)[-1].alternatives for text in texts[:2]]
    continued = [model.generate(text[:3], temperature=0, max_new_tokens=8)[0] for text in texts]
    return {
        "scores": [[*one.token_log_probabilities, one.eos_log_probability] for one in model.score(texts)],
        "next": [_by_name((one.token, one.log_probability) for one in some) for some in predicted],
        "translations": {"1": [{"text": one.text, "score": sum(one.token_log_probabilities)} for one in continued]},
    }


def _by_name(found: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """The log-probabilities of each token; tokens that read alike share a list, in falling order."""
    table: dict[str, list[float]] = {}
    for name, value in found:
        table.setdefault(name, []).append(value)
    return table


def losses(run: Path) -> dict[str, float]:
    """Return every loss in the metrics of a run, by kind of record and step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {f"{line['kind']} {line['step']}": line["loss"] for line in lines}


def pack(folder: Path, archive: Path) -> None:
    """Write all files of ``folder`` into ``archive``, without owners and times."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as file:
        for path in sorted(folder.iterdir()):
            file.add(path, path.name, filter=plain)
