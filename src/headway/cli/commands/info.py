"""``headway info``."""

from __future__ import annotations

import json

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.errors import escape_unprintable

GROUP = CommandGroup.UNDERSTAND


def info(model: options.ModelArgument, format_: options.FormatOption = "text") -> None:
    """Describe a model folder: task, architecture, vocabularies, weights, and how it runs on this machine."""
    from headway.calls.description import model_facts

    facts = model_facts(model)
    if format_ == "json":
        print(json.dumps(facts, ensure_ascii=False))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {f'{value:,}' if type(value) is int else escape_unprintable(str(value))}")
