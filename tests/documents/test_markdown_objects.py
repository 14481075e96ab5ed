"""Random Markdown: a translation that changes no word shows the same text, objects and white space."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from upper_case import UpperCaseTranslator

from headway.documents import translate_document

WORDS = ["word", "Wort,", "été", "(see)", "end.", "5 km", "it's", "—", "“q”", "x\\*y", "a \\ b", "C:\\d", "AT&T", "<3"]
OBJECTS = [
    *("`code`", "``a`b``", "![pic](a.png)", '[link](u "t")', "[ref][r]", "[r]", "<https://a.b>", "$x_1$", "$a = b$"),
    *("\\(a^b\\)", "{{ v }}", "{% if x %}", "[^1]", "<br>", "<br/>", "<img src=a>", "<!-- c -->", ":smile:", "{name}"),
    *("%s", "🎉", "<span class=a>s</span>", "<code>c</code>", "<kbd>Ctrl</kbd>", "{#id}"),
]
PAIRS = [("**", "**"), ("*", "*"), ("_", "_"), ("~~", "~~"), ("<b>", "</b>"), ("<u>", "</u>"), ("[", "](v)")]
SPACES = [" ", " ", " ", "  ", " ", "\n", " \\\n", "  \n"]


class MarkdownMaker:
    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def document(self) -> str:
        return "\n\n".join([*(self._block() for _ in range(3)), "[r]: u\n"])

    def _block(self) -> str:
        text = self._inline(2)
        line = " ".join(text.split("\n"))
        return self._draw.choice([
            text,
            f"# {line}",
            "- " + text.replace("\n", "\n  "),
            "> " + text.replace("\n", "\n> "),
            f"| {line} | b |\n|---|---|\n| c | {line} |",
            f":::note\n{text}\n:::",
        ])  # fmt: skip

    def _inline(self, depth: int) -> str:
        draw, parts = self._draw, list[str]()
        for _ in range(draw.randint(1, 6)):
            kind = draw.random()
            if kind < 0.5:
                parts.append(draw.choice(WORDS))
            elif kind < 0.75 or not depth:
                parts.append(draw.choice(OBJECTS))
            else:
                inner = self._inline(depth - 1).strip()
                opening, closing = draw.choice(PAIRS if "[" not in inner else PAIRS[:-1])
                parts.append(opening + inner + closing)
            parts.append(draw.choice(SPACES) if depth == 2 else " ")
        return "".join(parts)


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(100, 500), marks=pytest.mark.slow)])
def test_the_same_words_give_the_same_document(seeds: range, tmp_path: Path) -> None:
    render = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render
    for seed in seeds:
        source, target = tmp_path / "a.md", tmp_path / "b.md"
        source.write_text(MarkdownMaker(seed).document(), encoding="utf-8")
        translate_document(UpperCaseTranslator(identity=True), source, target)
        shown, expected = (" ".join(render(path.read_text(encoding="utf-8")).split()) for path in (target, source))
        assert shown == expected, seed
