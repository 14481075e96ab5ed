"""The groups under which ``headway --help`` lists the commands."""

from __future__ import annotations

from enum import StrEnum


class CommandGroup(StrEnum):
    """A heading of the help, in the order of the help."""

    TRAIN = "Train models"
    RUN = "Run models"
    EVALUATE = "Evaluate models"
    UNDERSTAND = "Understand models and files"
    DEPLOY = "Import, export and serve models"
