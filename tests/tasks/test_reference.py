from pathlib import Path

from headway.serve.reference import serve_reference
from headway.tasks.reference import recipe_reference

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_in_the_docs_are_up_to_date() -> None:
    assert (DOCS / "recipe.md").read_text(encoding="utf-8") == recipe_reference(), "run: make generated"
    assert (DOCS / "serve_toml.md").read_text(encoding="utf-8") == serve_reference(), "run: make generated"
