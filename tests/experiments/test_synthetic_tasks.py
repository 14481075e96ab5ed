"""Made-up tasks: what they ask for, and the verdicts on made-up shares of right answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pictures import assert_legible, overlapping_texts

from headway.experiments import load_experiment, synthetic_tasks
from headway.experiments.experiment import Numbers, to_json_values
from headway.experiments.figures import figure_style
from headway.experiments.synthetic_tasks import HEADS, LOOK_BACK, LOOK_UPS, ORDERS, RECALL, VALUES, make_setup
from headway.experiments.verdicts import settle

REPRODUCED, EQUAL, OPPOSITE, OPEN = "reproduced", "no difference above", "opposite here", "not decidable here"
LEARNED, GUESSED = 0.97, 0.2
UNLEARNED = {
    *((order, "none", length) for order in ("copy", "reverse") for length in (8, 16)),
    *((task, "learned", length) for task, length in [(order, 16) for order in ORDERS] + [("look back", 32)]),
    *(("look back", "none", length) for length in (16, 32)),
    (LOOK_UPS, "1 heads", 8),
    (LOOK_UPS, "32 heads", 8),
    (RECALL, "LSTM", 32),
}
STEPS = {"sinusoidal": 200, "learned": 800, "rotary": 50}  # until looking back is learned


def made_up(num_seeds: int = 5, changes: dict[tuple[str, str, int], float] | None = None) -> Numbers:
    """All claims hold. ``changes`` are other shares of right answers by task, variant and length."""
    runs = list[dict[str, Any]]()
    for task, variants in synthetic_tasks.VARIANTS.items():
        for variant in variants:
            for seed in range(num_seeds):
                curve = [
                    LEARNED if 25 * (n + 1) >= STEPS.get(variant, 800) + 25 * (seed % 2) else 0.1 for n in range(36)
                ]
                right = {}
                for length in make_setup(task, variant).tests:
                    share = GUESSED if (task, variant, length) in UNLEARNED else LEARNED
                    share = (changes or {}).get((task, variant, length), share)
                    right[str(length)] = [share + 0.003 * seed] * length
                runs.append(
                    {"task": task, "variant": variant, "seed": seed, "curve": curve, "right": right, "seconds": 9.0}
                )
    return {"runs": runs, "rates": dict.fromkeys(synthetic_tasks.ARCHITECTURES, 0.01)}


def outcomes(numbers: Numbers) -> list[str]:
    (verdicts,) = settle([load_experiment("synthetic-tasks").judge(to_json_values(numbers))])
    return [verdict.outcome for verdict in verdicts]


def test_shares_that_bear_the_claims_out_reproduce_them() -> None:
    expected = [EQUAL if sign == "=" else REPRODUCED for _, _, sign, *_ in synthetic_tasks.COMPARISONS]
    assert outcomes(made_up()) == expected


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("worse at reversing", {("reverse", "none", 8): 1.2}),
        ("sorts a sequence equally well", {("sort", "none", 8): 0.2}),
        ("At twice the training length", {(order, "learned", 16): 1.2 for order in ORDERS}),
        (
            "With sinusoids, copying, reversing and sorting work equally well",
            {(order, "sinusoidal", 16): 0.5 for order in ORDERS},
        ),
        (
            "With sinusoids, attention to the third position back works equally well",
            {("look back", "sinusoidal", 32): 0.5},
        ),
        ("One head answers", {(LOOK_UPS, "1 heads", 8): 1.2}),
        ("A Transformer recalls one of 32 pairs better", {(RECALL, "LSTM", 32): 1.2}),
        ("one of 32 pairs as well as one of 4", {(RECALL, "Transformer", 4): 0.5}),
    ],
)
def test_other_shares_contradict_a_claim(words: str, changes: dict[tuple[str, str, int], float]) -> None:
    (number,) = [n for n, claim in enumerate(synthetic_tasks.CLAIMS) if words in claim.text]
    assert outcomes(made_up(changes=changes))[number] == OPPOSITE


def test_without_all_seeds_or_a_reference_that_has_learned_nothing_is_decided() -> None:
    assert set(outcomes(made_up(num_seeds=4))) == {OPEN}
    found = outcomes(made_up(changes={(LOOK_UPS, "4 heads", 8): 0.9}))
    heads = [task == LOOK_UPS for task, *_ in synthetic_tasks.COMPARISONS]
    assert [outcome == OPEN for outcome in found] == heads


def test_rewriting() -> None:
    for order, expected in (("copy", [7, 5, 9]), ("reverse", [9, 5, 7]), ("sort", [5, 7, 9])):
        assert ORDERS[order](torch.tensor([[7, 5, 9]])).tolist() == [expected]
    (source, prefix), target = synthetic_tasks.draw_rewriting(ORDERS["reverse"], 6)
    assert torch.equal(target.squeeze(-1), source.flip(1))
    assert torch.equal(prefix[:, 1:], target[:, :-1, 0])


def test_looking_back() -> None:
    (symbols,), expected = synthetic_tasks.draw_look_back(9)
    assert torch.equal(expected[:, LOOK_BACK:], symbols[:, :-LOOK_BACK])
    assert (expected[:, :LOOK_BACK] == -1).all()


@pytest.mark.parametrize("answers", [1, 2])
def test_look_ups_by_a_dictionary(answers: int) -> None:
    (tokens,), expected = synthetic_tasks.draw_look_ups(answers, 4)
    for row, labels in zip(tokens.tolist(), expected.tolist(), strict=True):
        dictionary = dict(row[:4])
        assert len(dictionary) == 4
        for (first, second), named in zip(row[4:], labels[4:], strict=True):
            keys = [first, second - VALUES - 1][:answers]
            assert named == [dictionary[key] for key in keys]
            assert len(set(keys)) == answers


def test_a_model_that_knows_the_rule_is_always_right_and_one_that_guesses_is_not() -> None:
    setup = make_setup("look back", "rotary")

    class Rule(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(tokens.roll(LOOK_BACK, 1), 16)

    right = synthetic_tasks._test(Rule(), setup.draw, 8)
    assert right == [None] * LOOK_BACK + [1.0] * 5
    torch.manual_seed(1)
    guessed = synthetic_tasks._test(setup.make().eval(), setup.draw, 8)
    assert all(0 < share < 0.2 for share in guessed[LOOK_BACK:] if share is not None)


def test_the_figure_is_legible() -> None:
    with figure_style():
        picture = load_experiment("synthetic-tasks").draw(to_json_values(made_up()))
        assert_legible(picture)
        assert overlapping_texts(picture) == []


def test_heads_divide_the_width() -> None:
    assert all(synthetic_tasks.WIDTH % heads == 0 for heads in HEADS)
