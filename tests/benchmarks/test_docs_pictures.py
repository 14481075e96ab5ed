"""The pictures of the documentation, and the check that names those that are older than their sources."""

import re
from pathlib import Path

import docs_pictures as pictures
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDES = ("inspection", "serving", "documents", "decoding", "training", "experiments")


def shown(page: Path) -> dict[Path, str]:
    """Return the pictures that a page of the documentation shows, with the alternative text of each."""
    text = page.read_text(encoding="utf-8")
    images = {name: alternative for alternative, name in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)}
    for element in re.findall(r"<picture>.*?</picture>|<img[^>]*>", text, re.DOTALL):
        (alternative,) = re.findall(r'<img[^>]*\balt="([^"]*)"', element)
        images |= dict.fromkeys(re.findall(r'(?:src|srcset)="([^"]+)"', element), alternative)
    return {(page.parent / name).resolve(): alternative for name, alternative in images.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_exist_and_have_alternative_texts(page: Path) -> None:
    found = shown(page)
    assert [path for path in found if not path.is_file()] == []
    assert [path for path, alternative in found.items() if len(alternative) < 15] == []
    assert found or page.stem not in ("README", *GUIDES)


def test_the_readme_has_three_pictures_in_half_a_megabyte() -> None:
    found = shown(PAGES[0])
    assert len(set(found.values())) == 3
    assert sum(path.stat().st_size for path in found) <= 500_000


def test_every_picture_is_shown_and_can_be_made_again() -> None:
    files = set((ROOT / pictures.FOLDER).iterdir())
    assert {path.name for path in files} == pictures.PICTURES.keys()
    assert files <= {path for page in PAGES for path in shown(page)}


def test_sources_of_pictures_exist() -> None:
    patterns = [pattern for picture in pictures.PICTURES.values() for pattern in picture.sources]
    assert [pattern for pattern in patterns if not pictures.hashes([pattern])] == []


def test_a_picture_is_older_than_a_source_that_has_changed_appeared_or_disappeared(tmp_path: Path) -> None:
    for name in ("changed.js", "same.js", "gone.js"):
        (tmp_path / name).write_text(name)
    drawn, picture = tmp_path / "drawn.png", tmp_path / "picture.png"
    Image.new("RGB", (4, 3), "teal").save(drawn)
    pictures.save(drawn, picture, pictures.hashes(["*.js"], tmp_path))
    assert pictures.changed_sources(picture, ["*.js"], tmp_path) == []
    (tmp_path / "changed.js").write_text("otherwise")
    (tmp_path / "gone.js").unlink()
    (tmp_path / "new.js").write_text("new.js")
    assert pictures.changed_sources(picture, ["*.js"], tmp_path) == ["changed.js", "gone.js", "new.js"]
    with Image.open(picture) as saved:
        assert saved.convert("RGB").getpixel((3, 2)) == (0, 128, 128)


def test_the_dark_form_of_a_plot_keeps_hues_and_exchanges_light_and_dark(tmp_path: Path) -> None:
    def draw(_: object, path: Path) -> None:
        plot = Image.new("RGB", (3, 1), "white")
        plot.putpixel((1, 0), (0, 0, 0))
        plot.putpixel((2, 0), (0, 114, 178))  # blue
        plot.save(path)

    pictures.darkened(draw)(None, tmp_path / "dark.png")  # type: ignore[arg-type]
    with Image.open(tmp_path / "dark.png") as dark:
        ground, text, line = (dark.getpixel((x, 0)) for x in range(3))
    assert ground == (pictures.DARKEST,) * 3
    assert text == (255, 255, 255)
    assert isinstance(line, tuple)
    assert line[0] < line[1] < line[2]  # still blue
    assert line[2] > 200
