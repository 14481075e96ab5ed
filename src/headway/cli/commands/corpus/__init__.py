"""Process the lines of large corpora, on one machine or many, as jobs that survive interruptions."""

from __future__ import annotations

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.RUN
