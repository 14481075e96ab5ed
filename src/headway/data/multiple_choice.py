"""Read multiple-choice questions from JSON lines, and build few-shot prompts from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import spelling_hint
from headway.data.draws import ORDER_VERSION, make_generator
from headway.data.readers import read_lines
from headway.errors import ConfigError, DataError

DEFAULT_FIELDS = ("question", "choices", "answer")
_BETWEEN_EXAMPLES = "\n\n"


@dataclass(frozen=True)
class Question:
    """A question and its possible answers.

    Attributes:
        text: The question as it appears in the prompt.
        answers: The possible answers. An answer begins with a space, unless the question ends with white space.
        right: Index of the correct answer, counted from 0.
        line: Number of the question's line in the file, counted from 1.
    """

    text: str
    answers: tuple[str, ...]
    right: int
    line: int

    @property
    def text_with_answer(self) -> str:
        """The question followed by its correct answer."""
        return self.text + self.answers[self.right]


def read_questions(path: Path, fields: Sequence[str] = DEFAULT_FIELDS) -> list[Question]:
    """Read questions from a file with one JSON object per line. Blank lines are skipped.

    Args:
        path: Path of the file.
        fields: Names of three fields: the question (a string, which may be empty), the answers (a list of two or more
            strings), and the correct answer (its index, counted from 0, or its text).

    Raises:
        ConfigError: The number of fields is not three.
        DataError: The file cannot be read, it contains no questions, or a line is not a valid question.
    """
    if len(fields) != len(DEFAULT_FIELDS):
        raise ConfigError(f"fields: {len(fields)} names; expected three: question, choices and answer")
    lines = enumerate(read_lines(path), start=1)
    questions = [_parsed(line, number, fields, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not questions:
        raise DataError(f"{path}: no questions; expected one JSON object per line")
    return questions


def parse_questions(records: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Parse questions from mappings with the keys in :data:`DEFAULT_FIELDS`.

    Raises:
        DataError: There are no questions, or a mapping is not a valid question. The message contains its index, counted
            from 0.
    """
    questions = [
        _question(record, index + 1, DEFAULT_FIELDS, f"questions[{index}]") for index, record in enumerate(records)
    ]
    if not questions:
        raise DataError("no questions; expected at least one")
    return questions


def _parsed(line: str, number: int, fields: Sequence[str], where: str) -> Question:
    """Parse a question from a line of a file."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not valid JSON ({error})", where=where, accepted=f"an object such as {_example(fields)}"
        ) from None
    return _question(record, number, fields, where)


def _example(fields: Sequence[str]) -> str:
    return json.dumps(dict(zip(fields, ("...", ["...", "..."], 0), strict=True)))


def _question(record: Any, number: int, fields: Sequence[str], where: str) -> Question:
    if not isinstance(record, Mapping):
        raise DataError("JSON, but not an object", where=where, accepted=f"an object such as {_example(fields)}")
    for name in fields:
        if name not in record:
            raise DataError(f"field {name!r} is missing; {spelling_hint(name, record)}", where=where)
    text, choices, answer = (record[name] for name in fields)
    if not isinstance(text, str):
        raise _wrong_value(fields[0], text, "a string", where)
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(one, str) and one for one in choices):
        raise _wrong_value(fields[1], choices, "a list of two or more strings that are not empty", where)
    if isinstance(answer, str) and choices.count(answer) == 1:
        answer = choices.index(answer)
    if type(answer) is not int or not 0 <= answer < len(choices):
        accepted = f"an index from 0 to {len(choices) - 1}, or one of the answers"
        raise _wrong_value(fields[2], answer, accepted, where)
    has_space = not text or text[-1].isspace()
    answers = (choice if has_space or choice[0].isspace() else f" {choice}" for choice in choices)
    return Question(text, tuple(answers), answer, number)


def _wrong_value(field: str, value: Any, accepted: str, where: str) -> DataError:
    shown = json.dumps(value, ensure_ascii=False)[:40]
    return DataError(f"field {field!r} is {shown}", where=where, accepted=accepted)


def few_shot_prompts(questions: Sequence[Question], num_examples: int) -> list[str]:
    """Return a prompt for each question that begins with other questions and their correct answers.

    The examples are drawn randomly from all other questions, and separated by blank lines. They depend only on the
    number of questions and the position of the question, so all models get the same examples.

    Raises:
        ConfigError: There are too few questions for this number of examples.
    """
    if not 0 <= num_examples < len(questions):
        raise ConfigError(
            f"{num_examples} examples from {len(questions)} questions: each question uses other questions as examples; "
            f"expected 0 to {len(questions) - 1}"
        )
    prompts = []
    for index, question in enumerate(questions):
        examples = (
            make_generator(ORDER_VERSION, index).permutation(len(questions) - 1)[:num_examples] if num_examples else ()
        )
        others = [questions[int(other) + (other >= index)].text_with_answer for other in examples]
        prompts.append(_BETWEEN_EXAMPLES.join([*others, question.text]))
    return prompts
