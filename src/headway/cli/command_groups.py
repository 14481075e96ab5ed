"""The groups under which ``headway --help`` lists the commands."""

from __future__ import annotations

from enum import StrEnum


class CommandGroup(StrEnum):
    """The heading of a group of commands in the help. The groups are listed in this order."""

    TRAIN = "Train models"
    RUN = "Run models"
    EVALUATE = "Evaluate models"
    UNDERSTAND = "Understand models and files"
    DEPLOY = "Import, export and serve models"
