"""Decoding step by step: what the decoder reads and predicts, and greedy search compared with beam search.

At each step the model reads the last chosen token and returns a probability for every token of the vocabulary (Vaswani
et al. 2017, section 3: "auto-regressive"). Greedy search takes the best token each time. Beam search keeps the four
best prefixes (section 6.1), so it may take a second-best token that leads to a better translation: the quality of a
choice depends on the tokens that follow it.

The test sentences are translated with one trained model per seed, or with the given model. Log-probabilities are
compared without a length penalty, BLEU with the paper's (0.6).

Each row of a token table is one step of the example. The input token is on the left, and the cells contain the five
most probable next tokens with their probabilities. A frame marks the chosen token, which is the input of the next step.
The first input is the begin symbol, and the end symbol ends the translation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Hypothesis
from headway.evaluation import bleu
from headway.experiments.comparison import judge_greater, mean_ci
from headway.experiments.corpus import MULTI30K, TextPair, experiment_corpus
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import heat_map, label, subplots
from headway.experiments.training import decode_target, encode_sources, load_bundle_on_device, model_folders, search_all
from headway.inspection.picture_files import MARKERS
from headway.text.base import BOS, EOS

TOP_K = 5  # number of most probable tokens to show
SHOWN_STEPS = 14  # number of steps that fit in a figure
SEARCHES = {
    "greedy": DecodingOptions(beam_size=1, length_penalty=0.0),
    "beam": DecodingOptions(beam_size=4, length_penalty=0.0),
    "beam, length penalty 0.6": DecodingOptions(beam_size=4, length_penalty=0.6),
}

CLAIMS = (
    Claim(
        "At each step the model consumes the previously generated symbols as additional input when generating the "
        "next.",
        "paper, 3",
    ),
    Claim("Beam search finds more probable translations than greedy search.", f"{OURS}; beam size 4 as in paper, 6.1"),
    Claim(
        "Beam search translates better than greedy search.",
        f"{OURS}; beam size 4 and length penalty 0.6 as in paper, 6.1",
    ),
)


def measure(settings: Settings) -> Numbers:
    """Run all searches with every model, and trace one example step by step with the first model."""
    corpus = experiment_corpus(settings)
    pairs = corpus.test_pairs[:30] if settings.quick else corpus.test_pairs
    sources, targets = zip(*pairs, strict=True)
    models, example = list[dict[str, Any]](), dict[str, Any]()
    for folder in model_folders(settings, corpus):
        bundle = load_bundle_on_device(folder)
        settings.say(f"step-by-step: translating {len(pairs)} sentences")
        results = {
            name: search_all(bundle, sources, options, lambda length: length + 50) for name, options in SEARCHES.items()
        }
        models.append(_dependence(bundle, sources, results["greedy"]) | {"logs": {}, "bleu": {}})
        for name, best in results.items():
            models[-1]["logs"][name] = [hypothesis.log_probability for hypothesis in best]
            models[-1]["bleu"][name] = bleu([decode_target(bundle, hypothesis) for hypothesis in best], targets).value
        example = example or _example(bundle, pairs, results["greedy"], results["beam"])
    rows = [
        {"model": number, "search": name, "log-probability, mean (nats)": fmean(model_numbers["logs"][name])}
        | {"BLEU": model_numbers["bleu"][name]}
        for number, model_numbers in enumerate(models, start=1)
        for name in SEARCHES
    ]
    tables = {f"Searches over {len(pairs)} sentences": rows}
    for name in ("greedy", "beam"):
        tables[f"{name.capitalize()}, step by step: {example['source']}"] = [
            {"step": number, "input": step["fed"], "output": step["chosen"], "probability": step["probability"]}
            | {f"best {rank}": f"{token} {value:.3f}" for rank, (token, value) in enumerate(step["best"], start=1)}
            for number, step in enumerate(example[name]["steps"], start=1)
        ]
    return {"found": models, "example": example, "tables": tables}


@torch.inference_mode()
def _dependence(bundle: Bundle, sources: Sequence[str], hypotheses: Sequence[Hypothesis]) -> dict[str, Any]:
    """Compare step-by-step decoding of ten sentences with one full pass, and measure the effect of the last token."""
    differences, changes = [0.0], []
    model: Any = bundle.model
    for source, hypothesis in list(zip(encode_sources(bundle, sources), hypotheses, strict=True))[:10]:
        if not hypothesis.tokens:
            continue
        ids, target = (torch.tensor([row], device=model.device) for row in (source, [BOS, *hypothesis.tokens]))
        whole = model(ids, target).log_softmax(-1)[0]
        state = model.start([source])
        steps = [model.step(state, token).logits().log_softmax(-1)[0] for token in target.T]
        differences.append(float((torch.stack(steps) - whole).abs().max()))
        target[0, -1] = whole[-2].topk(2).indices[-1]  # the second-best token
        after = model(ids, target).softmax(-1)[0, -1]
        changes.append(float((after - whole[-1].exp()).abs().sum() / 2))
    return {"difference": max(differences), "change": fmean(changes or [0.0])}


def _example(
    bundle: Bundle, pairs: Sequence[TextPair], greedy: Sequence[Hypothesis], beam: Sequence[Hypothesis]
) -> dict[str, Any]:
    """Trace the shortest sentence for which beam search finds a better translation, or else the first sentence."""
    differ = [
        (len(one.tokens) + len(other.tokens), index)
        for index, (one, other) in enumerate(zip(greedy, beam, strict=True))
        if all(2 < len(hypothesis.tokens) < SHOWN_STEPS for hypothesis in (one, other))
        and other.log_probability > one.log_probability + 1e-3
    ]
    _, index = min(differ, default=(0, 0))
    source, target = pairs[index]
    pieces = bundle.source_tokenizer.display(encode_sources(bundle, [source])[0])
    shown = {
        name: {
            "text": decode_target(bundle, hypothesis),
            "log": hypothesis.log_probability,
            "steps": _steps(bundle, source, hypothesis),
        }
        for name, hypothesis in (("greedy", greedy[index]), ("beam", beam[index]))
    }
    return {"source": source, "pieces": pieces, "reference": target, "differ": bool(differ), **shown}


@torch.inference_mode()
def _steps(bundle: Bundle, source: str, hypothesis: Hypothesis) -> list[dict[str, Any]]:
    """Return the input, the chosen token and the most probable tokens of each step."""
    show, tokens = bundle.target_tokenizer.display, [BOS, *hypothesis.tokens, EOS]
    ids, target = (
        torch.tensor(rows, device=bundle.model.device) for rows in (encode_sources(bundle, [source]), [tokens[:-1]])
    )
    distributions = bundle.model(ids, target).softmax(-1)[0, :SHOWN_STEPS]
    return [
        {
            "fed": show([fed])[0],
            "chosen": show([chosen])[0],
            "rank": int((weights > weights[chosen]).sum()) + 1,
            "probability": float(weights[chosen]),
            "best": list(zip(show(weights.topk(TOP_K).indices.tolist()), weights.topk(TOP_K).values, strict=True)),
        }
        for fed, chosen, weights in zip(tokens, tokens[1:], distributions, strict=False)
    ]


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by agreement with the full pass, by gains and losses in log-probability, and by BLEU over models."""
    models = numbers["found"]
    gains = [model["bleu"]["beam, length penalty 0.6"] - model["bleu"]["greedy"] for model in models]
    bleu_gain = judge_greater(mean_ci(gains), f"BLEU of beam search minus greedy search, mean of {len(gains)} models")
    return _judge_steps(models), _judge_probability(models), bleu_gain


def _gains(models: list[dict[str, Any]]) -> list[float]:
    """Return beam search's gain in log-probability over greedy search for each sentence and model."""
    return [b - g for model in models for g, b in zip(model["logs"]["greedy"], model["logs"]["beam"], strict=True)]


def _judge_steps(models: list[dict[str, Any]]) -> Verdict:
    difference, change = max(model["difference"] for model in models), min(model["change"] for model in models)
    reason = (
        "decoding one token at a time gives the same log-probabilities as one pass over the whole target, within "
        f"{difference:.1g}. If the last token is replaced by the second best, {change:.0%} of the next token's "
        "probability mass moves to other tokens"
    )
    return decide(reason, supported=difference <= 1e-3 and change > 0.01, refuted=difference > 1e-3)


def _judge_probability(models: list[dict[str, Any]]) -> Verdict:
    gains = _gains(models)
    better, worse = (sum(sign * gain > 1e-3 for gain in gains) / len(gains) for sign in (1, -1))
    mean = fmean(gains)
    reason = (
        f"of {len(gains)} translations, {better:.1%} are more probable with beam search and {worse:.1%} less probable; "
        f"the others are equally probable. The mean gain is {mean:.3f} nats. Beam search can lose the greedy path"
    )
    differ = better != worse
    return decide(reason, supported=differ and mean > 0 and better > 5 * worse, refuted=differ and mean <= 0)


def draw(numbers: Numbers) -> Figure:
    """Draw the steps of both searches as tables of the five best tokens, and the gain for every sentence."""
    example = numbers["example"]
    rows = max(len(example[name]["steps"]) for name in ("greedy", "beam"))
    title = f"Decoding step by step: “{example['source']}”"
    picture, (greedy, beam, both, gain) = subplots(title, 2, 2, size=(17, 2 * max(5.5, 2 + 0.5 * rows)))
    for axes, name in ((greedy, "greedy"), (beam, "beam")):
        search = example[name]
        _draw_steps(axes, search["steps"])
        label(axes, f"{name}, log P = {search['log']:.3f}\n{search['text']}", "rank (framed: chosen)", "input token")
    logs = [model["logs"] for model in numbers["found"]]
    for number, (model_logs, marker) in enumerate(zip(logs, MARKERS, strict=False), start=1):
        both.plot(model_logs["greedy"], model_logs["beam"], marker, alpha=0.6, label=f"model {number}")
    ends = [min(min(model_logs["greedy"]) for model_logs in logs), 0]
    both.plot(ends, ends, ":", color="#777777", label="equal")
    both.legend()
    title = "Every sentence (above the line: beam search is better)"
    label(both, title, "log P of greedy (nats)", "log P of beam 4 (nats)")
    gain.hist(_gains(numbers["found"]), bins=40)
    gain.axvline(0, color="#777777", linestyle=":")
    label(gain, "What beam search gains", "log P of beam 4 minus greedy (nats)", "number of sentences")
    return picture


def _draw_steps(axes: Axes, steps: list[dict[str, Any]]) -> None:
    frame = {"boxstyle": "round", "facecolor": "none", "edgecolor": "#D55E00", "linewidth": 2.2}
    best = [step["best"] for step in steps]
    values = [[value for _, value in row] for row in best]
    texts = [[f"{_short(token)}  {value:.2f}" for token, value in row] for row in best]
    style: Any = {"dark_above": 0.7, "vmin": 0, "vmax": 1.15, "column_labels": range(1, TOP_K + 1)}
    style["text_style"] = lambda row, column: {
        "fontsize": 12,
        "bbox": frame if column + 1 == steps[row]["rank"] else None,
    }
    heat_map(axes, values, texts, row_labels=[_short(step["fed"]) for step in steps], **style)


def _short(token: str) -> str:
    return token if len(token) <= 9 else f"{token[:8]}…"


def explain(numbers: Numbers) -> str:
    """Describe the example, and where the two searches differ."""
    example = numbers["example"]
    story = "In this run no short sentence was found for which the two searches differ."
    if example["differ"]:
        gain = math.exp(example["beam"]["log"] - example["greedy"]["log"])
        away = [step for step in example["beam"]["steps"] if step["rank"] > 1]
        story = f"Beam search finds a translation that is {gain:.2f} times as probable as greedy search's."
        if away:
            story += " After “{fed}”, it takes “{chosen}”, which has only rank {rank} there.".format(**away[0])
    pieces = " · ".join(example["pieces"])
    return f"The source, as the encoder reads it: {pieces}. The reference: “{example['reference']}”. {story}"


TITLE = "Decoding, step by step"
EXPERIMENT = Experiment(
    "step-by-step", TITLE, __doc__, CLAIMS, measure, judge, draw, explain, data_files=MULTI30K, takes_model=True
)
