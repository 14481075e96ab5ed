"""Write experiments as one HTML page: all claims with their verdicts first, then each experiment in detail.

The page is one file and needs no network: the figures are embedded. It supports light and dark mode. All text is
escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from headway.experiments.experiment import ExperimentRecord
from headway.storage import atomic_write_text

_LONG = 12  # longer tables are collapsed
_MARKS = {"supported": "✓", "refuted": "✗", "inconclusive": "?"}

_FORMS = {
    "quick": "Small made-up data and tiny models, so read the verdicts on quality as a rehearsal.",
    "full": "Models are small and trained for few steps, a million weights and about three epochs of Multi30k: "
    "verdicts on quality hold at that size and budget. What needs no training holds as it stands.",
}


def write_report(records: Sequence[ExperimentRecord], folder: Path, path: Path) -> None:
    """Write the page for ``records``, whose figures are in ``folder``, to ``path``, whole or not at all."""
    forms = sorted({str(record.how["form"]) for record in records})
    body = [
        "<h1>Every claim, measured</h1>",
        f'<p class="soft">{_counts(records)}</p>',
        *(f'<p class="soft">Form: {escape(form)}. {_FORMS[form]}</p>' for form in forms),
        _contents(records),
        *(_section(record, folder / f"{record.name}.svg") for record in records),
    ]
    style = (files("headway.experiments") / "report.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Every claim, measured</title><style>\n{style}</style></head>\n"
        f"<body>\n{chr(10).join(body)}\n</body></html>\n"
    )
    atomic_write_text(path, page)


def _counts(records: Sequence[ExperimentRecord]) -> str:
    found = [verdict.outcome for record in records for verdict in record.verdicts]
    each = ", ".join(f"{found.count(outcome)} {outcome}" for outcome in _MARKS if outcome in found)
    return f"{len(records)} experiments, {len(found)} claims: {each}."


def _contents(records: Sequence[ExperimentRecord]) -> str:
    rows = []
    for record in records:
        link = f'<a href="#{escape(record.name)}">{escape(record.title)}</a>'
        first = f'<th scope="rowgroup" rowspan="{len(record.claims)}">{link}</th>'
        for claim, verdict in zip(record.claims, record.verdicts, strict=True):
            cells = f"<td>{escape(str(claim))}</td><td>{escape(claim.source)}</td><td>{_verdict(verdict.outcome)}</td>"
            rows.append(f"<tr>{first}{cells}</tr>")
            first = ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Experiment", "Claim", "Source", "Verdict"))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _verdict(outcome: str) -> str:
    return f'<span class="verdict {outcome}">{_MARKS[outcome]} {outcome}</span>'


def _section(record: ExperimentRecord, figure: Path) -> str:
    claims = "".join(
        f'<div class="claim {verdict.outcome}"><p class="said">{escape(str(claim))} '
        f'<span class="soft">({escape(claim.source)})</span></p>'
        f'<p class="why">{_verdict(verdict.outcome)}: {escape(verdict.reason)}</p></div>'
        for claim, verdict in zip(record.claims, record.verdicts, strict=True)
    )
    words = "".join(f"<p>{escape(part)}</p>" for part in record.explanation.split("\n\n") if part.strip())
    picture = base64.b64encode(figure.read_bytes()).decode("ascii")
    tables = "".join(_table(caption, rows) for caption, rows in record.numbers.get("tables", {}).items())
    where = ", ".join(f"{name} {value}" if name != "hardware" else value for name, value in record.where.items())
    how = "; ".join(f"{name}: {_written(value)}" for name, value in record.how.items() if value is not None)
    return (
        f'<section id="{escape(record.name)}"><h2>{escape(record.title)}</h2>{claims}'
        f'<figure><img alt="{escape(f"Figure: {record.title}")}" src="data:image/svg+xml;base64,{picture}"></figure>'
        f"{words}{tables}<h3>How to repeat it</h3><pre>{escape(record.command)}</pre>"
        f'<p class="soft">{escape(how)}. Measured {escape(record.date)} in {record.seconds:.3g} s on '
        f"{escape(where)}. All numbers: {escape(record.name)}.json.</p></section>"
    )


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = dict.fromkeys(column for row in rows for column in row)
    kinds = {
        column: "number" if all(isinstance(row.get(column), int | float | None) for row in rows) else "text"
        for column in columns
    }
    head = "".join(f'<th class="{kind}" scope=col>{escape(column)}</th>' for column, kind in kinds.items())
    lines = (
        "".join(f'<td class="{kind}">{escape(_written(row.get(column)))}</td>' for column, kind in kinds.items())
        for row in rows
    )
    body = "".join(f"<tr>{cells}</tr>" for cells in lines)
    table = (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    if len(rows) <= _LONG:
        return table
    return f"<details><summary>{escape(caption)}: {len(rows)} rows</summary>{table}</details>"


def _written(value: Any) -> str:
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
            return ", ".join(map(_written, value))
        case _:
            return str(value)
