from pathlib import Path

from headway.tasks.reference import recipe_reference

REFERENCE = Path(__file__).parents[2] / "docs" / "recipe.md"


def test_the_reference_in_the_docs_is_that_of_the_code() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == recipe_reference(), (
        "run: python -m headway.tasks.reference > docs/recipe.md"
    )
