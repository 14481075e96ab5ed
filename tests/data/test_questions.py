"""Multiple-choice questions: reading them, and the examples before them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headway.data.multiple_choice import Question, few_shot_prompts, read_questions
from headway.errors import ConfigError, DataError

GOOD: dict[str, Any] = {
    "question": "lull is to trust as",
    "choices": ["balk : fortitude", "cajole : compliance"],
    "answer": 1,
}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


def test_a_space_separates_question_and_answer(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    write(file, GOOD, {**GOOD, "question": "Answer: ", "answer": "balk : fortitude", "id": 7}, {**GOOD, "question": ""})
    with file.open("a", encoding="utf-8") as more:
        more.write('\n{"question": "a", "choices": [" b", "c"], "answer": 0}\n')
    first, second, third, last = read_questions(file)
    assert first == Question("lull is to trust as", (" balk : fortitude", " cajole : compliance"), 1, 1)
    assert (second.answers, second.right, second.line) == (("balk : fortitude", "cajole : compliance"), 0, 2)
    assert third.answers == ("balk : fortitude", "cajole : compliance")
    assert (last.answers, last.line) == ((" b", " c"), 5)
    assert [question.text_with_answer for question in (first, second)] == [
        "lull is to trust as cajole : compliance",
        "Answer: balk : fortitude",
    ]


def test_other_names_of_the_fields(tmp_path: Path) -> None:
    file = write(tmp_path / "questions.jsonl", {"q": "a", "options": ["b", "c"], "label": 1})
    assert read_questions(file, ["q", "options", "label"])[0].right == 1
    with pytest.raises(DataError, match=r"questions\.jsonl, line 1: field 'option' is missing; did you mean 'options'"):
        read_questions(file, ["q", "option", "label"])
    with pytest.raises(ConfigError, match="fields: 2 names; expected three: question, choices and answer"):
        read_questions(file, ["q", "options"])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([1], r"JSON, but not an object; expected an object such as .\"question\""),
        ({**GOOD, "question": 1}, "field 'question' is 1; expected a string"),
        ({**GOOD, "choices": ["a"]}, r"field 'choices' is \[\"a\"\]; expected a list of two or more strings"),
        ({**GOOD, "choices": ["a", ""]}, ".*; expected a list of two or more strings that are not empty"),
        ({**GOOD, "choices": "ab"}, "field 'choices' is \"ab\"; expected a list"),
        ({**GOOD, "answer": 2}, "field 'answer' is 2; expected an index from 0 to 1, or one of the answers"),
        ({**GOOD, "answer": "cajole"}, "field 'answer' is \"cajole\"; expected an index"),
        ({**GOOD, "answer": True}, "field 'answer' is true; expected an index"),
        ({**GOOD, "choices": ["a", "a"], "answer": "a"}, "field 'answer' is \"a\"; expected an index"),
    ],
)
def test_records_that_are_no_questions(tmp_path: Path, record: object, message: str) -> None:
    with pytest.raises(DataError, match=rf"questions\.jsonl, line 2: {message}"):
        read_questions(write(tmp_path / "questions.jsonl", GOOD, record))


def test_files_without_questions(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no questions; expected one JSON object per line"):
        read_questions(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: not valid JSON"):
        read_questions(file)


def test_examples_are_other_questions_with_their_answers() -> None:
    questions = [Question(f"q{index}", (" no", " yes"), 1, index + 1) for index in range(8)]
    assert few_shot_prompts(questions, 0) == [question.text for question in questions]
    prompts = few_shot_prompts(questions, 3)
    assert prompts == few_shot_prompts(questions, 3)
    used: Counter[str] = Counter()
    for index, prompt in enumerate(prompts):
        *examples, last = prompt.split("\n\n")
        assert last == f"q{index}"
        assert len(set(examples)) == 3
        assert f"q{index} yes" not in examples
        assert all(re.fullmatch(r"q[0-7] yes", example) for example in examples)
        used.update(examples)
    assert len(used) == 8  # each question is an example of others
    assert all(len(prompt.split("\n\n")) == 8 for prompt in few_shot_prompts(questions, 7))
    with pytest.raises(ConfigError, match=r"8 examples from 8 questions: .* expected 0 to 7"):
        few_shot_prompts(questions, 8)
