"""Read plain-text documents, as specified by the options --data, --fields and --documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from headway.errors import escape_unprintable


def read_text_documents(data: Path, fields: str | None, documents: str) -> Iterator[str]:
    """Yield the documents specified by the options --data, --fields and --documents."""
    from headway.data.documents import TextCorpus, read_whole_documents

    def say(message: str) -> None:
        typer.echo(escape_unprintable(message), err=True)

    settings = {"files": [str(data)], "fields": fields and [fields], "documents": documents}
    yield from read_whole_documents(TextCorpus.parse(settings, "--data").with_expanded_files(Path(), say), Path())
