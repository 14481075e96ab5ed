from pathlib import Path

from headway.tasks.reference import recipe_reference

REFERENCE = Path(__file__).parents[2] / "docs" / "recipe.md"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == recipe_reference(), (
        "run: python -m headway.tasks.reference > docs/recipe.md"
    )
