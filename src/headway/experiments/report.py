"""Write the results of experiments as one HTML page: first all claims with verdicts, then each experiment in detail.

The page is one file and needs no network: the figures are embedded. It supports light and dark mode. All text is
escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from headway.experiments.experiment import ExperimentRecord
from headway.report_page import report_parts
from headway.storage import atomic_write_text

_LONG = 12  # tables with more rows are collapsed
_MARKS = {"supported": "✓", "refuted": "✗", "inconclusive": "?"}
_FORMS = {
    "quick": "Small made-up data and tiny models, so the verdicts on quality only show that the measurements work.",
    "full": "Models have about a million weights and are trained for minutes. Verdicts on quality hold at that size "
    "and budget; verdicts that need no training hold in general.",
}


def write_report(records: Sequence[ExperimentRecord], folder: Path, path: Path) -> None:
    """Write the page for ``records``, whose figures are in ``folder``, to ``path``, completely or not at all."""
    html = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    html.filters["written"] = _format
    template, style = report_parts("headway.experiments")
    page = html.from_string(template).render(
        style=style,
        records=records,
        zip=zip,
        outcomes=[verdict.outcome for record in records for verdict in record.verdicts],
        marks=_MARKS,
        forms=sorted({str(record.how["form"]) for record in records}),
        form_notes=_FORMS,
        figures={
            record.name: base64.b64encode((folder / f"{record.name}.svg").read_bytes()).decode() for record in records
        },
        column_kinds=_column_kinds,
        long=_LONG,
    )
    atomic_write_text(path, page)


def _column_kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Map each column of a table to "number" or "text", depending on its values."""
    columns = dict.fromkeys(column for row in rows for column in row)
    numeric = {name: all(isinstance(row.get(name), int | float | None) for row in rows) for name in columns}
    return {name: "number" if is_numeric else "text" for name, is_numeric in numeric.items()}


def _format(value: Any) -> str:
    """Format a value: four significant digits for fractions, thousands separators, a dash for a missing value."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 10_000 and abs(value) < 1e9 else f"{value:.4g}"
        case list():
            return ", ".join(map(_format, value))
        case _:
            return str(value)
