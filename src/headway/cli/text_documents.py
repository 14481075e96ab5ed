"""Documents of plain text, as the options --data, --fields and --documents name them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import typer


def read_text_documents(data: Path, fields: str | None, documents: str) -> Iterator[str]:
    """Yield the documents of the files that the options --data, --fields and --documents name."""
    from headway.data.documents import TextCorpus, read_whole_documents

    settings = {"files": [str(data)], "fields": fields and [fields], "documents": documents}
    yield from read_whole_documents(
        TextCorpus.parse(settings, "--data").expanded(Path(), partial(typer.echo, err=True)), Path()
    )
