"""A call of each command, with the files of ``model_folders.py``: what tests of all commands call.

A new command needs a row here: in ``MODEL_CALLS`` if it runs a model, so that it must have
``options.DeviceOption``, and otherwise in ``OTHER_CALLS``. The words are those after ``headway``. Names of files and
folders of the fixture ``folders`` are replaced by their paths.
"""

from __future__ import annotations

from headway.cli import COMMANDS

MODEL_CALLS = [
    "translate translator Haus --precision float32",
    "translate translator Haus --with translator2 --precision float32",
    "translate translator Haus --pivot back --precision float32",
    "classify classifier Haus --explain",
    "translate translator Haus --trace --precision float32",
    "generate language_model Haus --max-new-tokens 1 --precision float32",
    "fill masked [MASK]",
    "evaluate translator --source source --reference target",
    "evaluate classifier --data labeled.tsv",
    "evaluate language_model --data source",
    "evaluate language_model --choices questions.jsonl --examples 1",
    "evaluate masked --pairs pairs.tsv",
    "compare translator translator2 --source source --reference target --samples 100 --trials 100",
    "compare language_model language_model2 --data source --documents line --samples 100 --trials 100",
    "score translator --source source --target target",
    "calibrate translator --source many --precision float32",
    "score language_model Haus",
    "score masked Haus",
    "rerank translator translator2 --source source --candidates candidates",
    "rerank translator --channel translator2 --channel-weight 1 --source source --candidates candidates",
    "rerank translator --language-model language_model --language-model-weight 1 --source source "
    "--candidates candidates",
    "alternatives translator Haus",
    "inspect translator Haus -o -",
    "inspect classifier Haus -o -",
    "inspect language_model Haus --max-new-tokens 1 -o -",
    "inspect masked Haus -o -",
]
# Commands that compute nothing with a model, or whose device is a key of the recipe or table that they read.
OTHER_CALLS = [
    "prepare recipe.toml",
    "train recipe.toml --run run",
    "average run",
    "curves run",
    "distill translator recipe.toml --run distilled --beam-size 1 --keep-original",
    "shortlist translator --source many --target many",
    "export translator --to huggingface -o exported",
    "import huggingface:exported -o imported",
    "tokenize translator Haus --merges",
    "learn-bpe source --merges 3 --word Haus",
    "info translator",
    "diagram translator -o model.svg",
    "schema recipe",
    "models",
    "serve translator --check",
]
NOT_CALLED = {"quickstart", "experiment", "doctor", *(name for name in COMMANDS if name.startswith("corpus "))}


def called_commands(calls: list[str]) -> set[str]:
    """Return the commands of calls."""
    return {call.split()[0] for call in calls}
