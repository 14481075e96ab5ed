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
from pathlib import Path
from typing import Any
from unittest import mock

import headway
from headway import cli

RECORDED = Path(__file__).parent / "recorded"
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
        texts: For a translator ``sources`` and ``targets``, and ``to`` if it has several target languages; for a
            classifier ``sources``.
    """
    model = headway.load(folder, device="cpu")
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
        "next": [_by_token(one) for one in following],
    }


def _translations(folder: Path, texts: dict[str, Any], beam: int) -> list[dict[str, Any]]:
    language = ("--to", texts["to"]) if "to" in texts else ()
    options = ("--precision", "float32", "--beam-size", beam, "--max-length", 24, "--no-guard", "--format", "json")
    plain = "--no-protect"  # the results are those of the model alone
    with tempfile.TemporaryDirectory() as aside:
        lines, output = Path(aside) / "sources.txt", Path(aside) / "found.jsonl"
        lines.write_text("".join(text + "\n" for text in texts["sources"]), encoding="utf-8")
        checked_command("translate", folder, "-i", lines, "-o", output, plain, *options, *language)
        found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    return [{"text": one["text"], "score": one["score"]} for one in found]


def _by_token(found: list[Any]) -> dict[str, list[float]]:
    """The log-probabilities of each token; tokens that read alike share a list, in falling order."""
    table: dict[str, list[float]] = {}
    for one in found:
        table.setdefault(one.token, []).append(one.log_probability)
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
