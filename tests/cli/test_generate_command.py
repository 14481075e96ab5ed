"""``headway generate``: its options are those of Python, its output is that of Python, and mistakes are one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run, write_lines

from headway.decode.generation_options import GenerationOptions
from headway.predict import LanguageModel, trace_generation

pytest_plugins = ["letter_model"]  # the fixtures of that file


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--max-new-tokens", 3, "--seed", 5], {"max_new_tokens": 3, "seed": 5}),
        (["--temperature", 0], {"temperature": 0.0}),
        (["--temperature", 0, "--beam-size", 3, "--n", 2], {"temperature": 0.0, "beam_size": 3, "n": 2}),
        (["--temperature", 1.5, "--top-k", 4, "--n", 3], {"temperature": 1.5, "top_k": 4, "n": 3}),
        (["--top-p", 0.5, "--min-p", 0.1], {"top_p": 0.5, "min_p": 0.1}),
        (["--repetition-penalty", 3], {"repetition_penalty": 3.0}),
        (["--stop", "a", "--stop", "bc"], {"stop": ("a", "bc")}),
        (["--ban", "a", "--ban", "b"], {"ban": ("a", "b")}),
        (
            ["--temperature", 0, "--beam-size", 4, "--include", "a b", "--max-new-tokens", 8],
            {"temperature": 0.0, "beam_size": 4, "include": ("a b",), "max_new_tokens": 8},
        ),
        (["--beyond-context", "slide", "--max-new-tokens", 40], {"beyond_context": "slide", "max_new_tokens": 40}),
    ],
    ids=str,
)
@pytest.mark.slow
def test_each_option_is_that_of_python(
    folder: Path, model: LanguageModel, words: list[object], options: dict[str, Any]
) -> None:
    expected = model.generate("abc", **options)
    ended = run("generate", folder, "abc", "--format", "json", *words)
    found = json.loads(ended.out)
    assert found["prompt"] == "abc"
    assert [each["text"] for each in found["continuations"]] == [each.text for each in expected]
    assert found == json.loads(json.dumps({"prompt": "abc", "continuations": [asdict(each) for each in expected]}))
    text = run("generate", folder, "abc", *words).out
    assert text == "".join(f"abc{each.text}\n" for each in expected)


def test_the_help_lists_every_option() -> None:
    shown = run("generate", "--help").out
    for name in GenerationOptions.model_fields:
        assert f"--{name.replace('_', '-')} " in shown


def test_each_line_of_a_file_is_a_prompt(folder: Path, model: LanguageModel, tmp_path: Path) -> None:
    prompts = ["ab", "", "c d", *["abc"] * 70]
    source = write_lines(tmp_path / "prompts", prompts)
    lines = run("generate", folder, "-i", source, "--max-new-tokens", 5).out.splitlines()
    expected = [found.text for (found,) in model.generate(prompts, max_new_tokens=5)]
    assert lines == [prompt + text for prompt, text in zip(prompts, expected, strict=True)]


@pytest.mark.slow
def test_a_trace_is_that_of_python(folder: Path, model: LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "beam_size": 2, "max_new_tokens": 3}
    words = ["--trace", "--temperature", 0, "--beam-size", 2, "--max-new-tokens", 3]
    traced = [trace_generation(model, prompt, **options) for prompt in ("ab", "c d")]
    expected = [
        f"{one.searches[0]}\nText: {prompt}{one.continuations[0].text}\n"
        for prompt, one in zip(("ab", "c d"), traced, strict=True)
    ]
    assert run("generate", folder, "ab", *words).out == expected[0]
    assert run("generate", folder, *words, stdin=b"ab\nc d\n").out == "\n".join(expected)
    assert expected[0].startswith("Step 1, beam 1 (log P 0.000): <bos> a b → ")
    found = json.loads(run("generate", folder, "ab", *words, "--format", "json").out)
    assert found["continuations"] == json.loads(json.dumps([asdict(traced[0].continuations[0])]))
    assert found["trace"] == json.loads(json.dumps([asdict(search) for search in traced[0].searches]))


def test_the_line_of_a_prompt_that_is_too_long(folder: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "prompts", [*["ab"] * 80, "abcde" * 4])
    ended = run("generate", folder, "-i", source, "-o", tmp_path / "out")
    assert_refused(ended, r"prompts, line 81: the prompt has 20 tokens, but the model's context has 16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", -1], "temperature"),
        (["--temperature", "1e-40"], "temperature = 1e-40: expected at least 1e-06"),
        (["--top-p", 0], "top_p"),
        (["--n", 2, "--temperature", 0], "n = 2: with temperature = 0 expected at most beam_size"),
        (["--beam-size", 2], "beam_size needs temperature = 0"),
        (["--stop", ""], "stop: an empty string"),
        (["--include", "a"], "include needs temperature = 0"),
        (["a", "-i", "file"], "PROMPT and --input cannot be combined"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(folder: Path, words: list[object], message: str) -> None:
    assert_refused(run("generate", folder, *words), message)
