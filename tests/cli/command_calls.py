"""Calls of the commands that run models, with the files of ``model_folders.py``."""

from __future__ import annotations

# The words after the command; names of files and folders of ``folders`` are replaced by their paths.
CALLS = [
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
