"""Headway's Python functions. They do the same work as the commands, but on objects instead of files.

training.py       train, distill
run.py            the result of training, and existing runs
events.py         the progress of training as events
progress.py       the progress of training as a bar
evaluation.py     evaluate, compare
looking.py        tokenize, inspect

These names are exported by :mod:`headway`. The other files contain the code that these functions and the commands
share. It takes validated recipes and loaded models:

recipes.py        train, distill on a teacher's output, prepare
measurements.py   measure models on texts
description.py    the facts about a model folder
quickstart.py     the corpora, recipes and scores of the quickstart
reranking.py      tune weights on half of a test set

No function leaves changes in the process that calls it.
"""
