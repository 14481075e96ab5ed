"""Load the parts of HTML reports: a package's template and style sheet, and the style sheet that all reports share."""

from __future__ import annotations

from importlib.resources import files


def report_parts(package: str) -> tuple[str, str]:
    """Return the template of a package's report, ``report.html``, and its complete style sheet."""
    folder = files(package)
    template, *styles = (
        file.read_text(encoding="utf-8")
        for file in (folder / "report.html", files("headway") / "report.css", folder / "report.css")
    )
    return template, "".join(styles)
