"""What Headway does, as calls of Python: the same work as that of the commands, on objects instead of files.

training.py     train, distill
run.py          the result of training, and runs that exist
events.py       the progress of training
evaluation.py   evaluate, compare
looking.py      tokenize, inspect

:mod:`headway` has these names. Each call leaves the process of its host as it was.
"""
