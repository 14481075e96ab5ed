"""The README agrees with the code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_page_says_which_part_of_the_paper_it_is() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) > 20
    beginnings = {page.name: page.read_text(encoding="utf-8").partition("\n## ")[0] for page in pages}
    assert [name for name, text in beginnings.items() if "paper" not in text] == []


def test_it_uses_the_words_of_the_papers_readers() -> None:
    words = ["seq2seq", "sequence-to-sequence", "encoder-decoder", "context vector", "multi-head", "byte-pair encoding"]
    assert [word for word in [*words, "playground", "label smoothing", "greedy"] if word not in README] == []


def test_every_link_of_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_shows_commands_that_exist() -> None:
    from headway.cli import COMMANDS

    shown = set(re.findall(r"^ +headway ([a-z-]+) ", README, re.MULTILINE))
    assert {"translate", "train"} <= shown <= set(COMMANDS)
