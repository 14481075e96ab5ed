"""The progress bar of commands."""

from headway.calls.progress import progress_bar as progress_bar
