"""Commands that take texts read them from standard input: each line is answered before the next one is read."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from command_line import assert_refused, run

pytest_plugins = ["model_folders"]  # the fixtures of that file

# Commands that read lines; "-" is standard input, and names of folders and files stand for their paths.
LINE_CALLS = [
    "translate translator --precision float32",
    "translate translator --workers 2 --precision float32",
    "classify classifier",
    "generate language_model --max-new-tokens 1 --precision float32",
    "generate language_model -i - --max-new-tokens 1 --precision float32",
    "fill masked --top 1",
    "score language_model",
    "score masked",
    "score translator --source - --target target",
    "score translator --source source --target -",
    "tokenize translator",
]


class _Conversation(io.BytesIO):
    """Standard input of a program that writes a line only after it has read the answer to the one before."""

    def __init__(self, *lines: str) -> None:
        super().__init__("".join(f"{line}\n" for line in lines).encode())
        self.written: list[int] = []  # how much of the output has been written when each line is read

    def read1(self, size: int | None = -1) -> bytes:
        output = sys.stdout.buffer
        assert isinstance(output, io.BytesIO)
        self.written.append(len(output.getvalue()))
        return self.readline()


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("call", LINE_CALLS)
def test_a_line_is_answered_before_the_next_one_is_written(call: str, folders: dict[str, Path]) -> None:
    words = [folders.get(word, word) for word in call.split()]
    conversation = _Conversation("das [MASK] Haus", "der [MASK] Baum")
    ended = run(*words, stdin=conversation)
    assert ended.code == 0, ended.err
    start, first, second = conversation.written
    assert 0 == start < first < second == len(ended.out.encode())
    at_once = run(*words, stdin=b"das [MASK] Haus\nder [MASK] Baum\n")
    if words[0] == "score":  # a batch of two is summed in another order than two batches of one
        numbers, expected = (list(map(float, output.split())) for output in (at_once.out, ended.out))
        assert numbers == pytest.approx(expected, abs=1.1e-4)  # one unit of the last digit
        assert at_once.out.count("\n") == ended.out.count("\n")
    else:
        assert at_once.out == ended.out


def test_a_prompt_from_a_pipe_is_continued(folders: dict[str, Path]) -> None:
    words = ("generate", folders["language_model"], "--temperature", 0, "--max-new-tokens", 3)
    prompt = run(*words, "das Haus")
    assert prompt.out.startswith("das Haus")
    assert run(*words, stdin=b"das Haus\n") == prompt
    assert run(*words, "-i", "-", stdin=b"das Haus\n") == prompt
    assert run(*words, stdin=b"") == run(*words, "")  # nothing to read: the model begins a text
    assert run(*words, "-i", "-", stdin=b"").out == ""


@pytest.mark.parametrize("call", ["alternatives translator", "inspect translator -o -"])
def test_a_text_from_a_pipe(call: str, folders: dict[str, Path]) -> None:
    command, model, *words = (folders.get(word, word) for word in call.split())
    piped = run(command, model, *words, stdin=b"das rote Haus\n")
    assert piped.code == 0
    assert piped == run(command, model, "das rote Haus", *words)
    assert_refused(run(command, model, *words, stdin=b""), "standard input is empty; expected a text")


def test_both_sides_of_pairs_cannot_come_from_a_pipe(folders: dict[str, Path]) -> None:
    ended = run("score", folders["translator"], "--source", "-", "--target", "-", stdin=b"das\n")
    assert_refused(ended, "--source and --target cannot both be standard input")
