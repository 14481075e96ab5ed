"""``headway learn-bpe``: the merges, the counts and the words, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import assert_refused, run, write_lines

SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3


def test_the_papers_example(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "words.txt", SENNRICH)
    ended = run("learn-bpe", file, "--merges", 4, "--word", "lowest", "--word", " low")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "16 words, 4 different ones",
        "0\tbytes\t\tl|o|w|e|s|t\t␣|l|o|w",
        "1\te + s → es\t9\tl|o|w|es|t\t␣|l|o|w",
        "2\tes + t → est\t9\tl|o|w|est\t␣|l|o|w",
        "3\tl + o → lo\t7\tlo|w|est\t␣|lo|w",
        "4\tlo + w → low\t7\tlow|est\t␣|low",
    ]
    rows = [json.loads(line) for line in run("learn-bpe", file, "--merges", 2, "--format", "json").out.splitlines()]
    assert rows[1] == {"rank": 1, "left": "es", "right": "t", "merged": "est", "count": 9, "segmentations": []}


@pytest.mark.slow
def test_learning_ends_when_no_pair_is_frequent_enough(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "words.txt", SENNRICH)
    ended = run("learn-bpe", file, "--min-frequency", 7, "--merges", 99, "-o", tmp_path / "out")
    assert ended.err == "4 merges: no other pair occurs 7 times\n"
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 5
    stdin = "".join(f"{word}\n" for word in SENNRICH).encode()
    assert run("learn-bpe", "-", "--merges", 4, stdin=stdin).out.count("\n") == 5


@pytest.mark.slow
def test_mistakes(tmp_path: Path) -> None:
    blank = write_lines(tmp_path / "blank.txt", ["", "  "])
    assert_refused(run("learn-bpe", blank), "blank.txt: no text to learn from; expected at least one line")
    assert_refused(run("learn-bpe", tmp_path / "none"), "none: no such file")
    assert run("learn-bpe", blank, "--merges", 0).code == 2
