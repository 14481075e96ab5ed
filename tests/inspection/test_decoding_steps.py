"""An inspection as the lines of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.inspection.inspect_text import decoding_trace, write_inspection
from headway.inspection.results import Inspection
from headway.predict import TokenAlternative
from headway.predict.language_modeling.predicted_tokens import PredictedToken

STEPS = tuple(
    PredictedToken(token, -0.5, 1, forced, (TokenAlternative(token, -0.5),))
    for token, forced in (("__en__", True), ("red", False), ("<eos>", False))
)
SEEN = Inspection("model", "transformer", "rot", ("rot", "<eos>"), (), target="red", steps=STEPS)


def test_a_translation(tmp_path: Path) -> None:
    write_inspection(SEEN, tmp_path / "steps.txt")
    assert (tmp_path / "steps.txt").read_text(encoding="utf-8").splitlines() == [
        "Encoder input: rot <eos>",
        "Step 1: <bos> → __en__ (given to the model) | __en__ 60.7 %",
        "Step 2: <bos> __en__ → red | red 60.7 %",
        "Step 3: <bos> __en__ red → <eos> | <eos> 60.7 %",
        "Translation: red",
    ]
    assert [step.log_probability for step in decoding_trace(SEEN).steps] == [0.0, -0.5, -1.0]


def test_the_prompt_of_a_language_model_is_given() -> None:
    trace = decoding_trace(replace(SEEN, prompt_length=2, source_tokens=("__en__", "red")))
    assert trace.encoder_input is None
    assert [step.given for step in trace.steps] == [True, True, False]


def test_what_has_no_steps_is_refused(tmp_path: Path) -> None:
    for seen in (replace(SEEN, steps=()), replace(SEEN, hidden_positions=(1, 2, 3))):
        with pytest.raises(ConfigError, match="a transformer model does not decode step by step"):
            write_inspection(seen, tmp_path / "steps.txt")
    with pytest.raises(ConfigError, match=r"kind, layer and head select attention, which a \.txt"):
        write_inspection(SEEN, tmp_path / "steps.txt", layer=1)
    assert list(tmp_path.iterdir()) == []
