"""What Headway does, as calls of Python: the same work as that of the commands, on objects instead of files.

training.py       train, distill
run.py            the result of training, and runs that exist
events.py         the progress of training, as events
progress.py       the progress of training, as a bar
evaluation.py     evaluate, compare
looking.py        tokenize, inspect

:mod:`headway` has these names. The other files are what these calls and the commands share, on recipes and models that
are validated and loaded:

recipes.py        train, distill on a teacher's output, prepare
measurements.py   models measured on texts
description.py    the facts about a model folder
quickstart.py     the corpora, recipes and scores of the quickstart
reranking.py      tuning of weights on half of a test set

A call leaves no changes in the process that makes it.
"""
