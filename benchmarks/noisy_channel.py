"""Measure how much a language model and a model for the reverse direction improve a translation model's ranking.

    python benchmarks/noisy_channel.py MODEL --language-model LM --channel REVERSE --source dev.de --reference dev.en \\
        --output benchmarks/results/noisy-channel-DATE.json

The eight candidates of a beam search are ranked with each combination of the terms of the noisy channel (see
headway.predict.reranking.noisy_channel). Weights are tuned on the odd lines, and BLEU is computed on the even lines. By
a paired bootstrap, each ranking is compared with the first candidate and with the ranking that adds only the number of
tokens to the translation model's log-probability, because most of the gain of a tuned ranking often comes from the
length.
"""

import json
import os
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import headway
from headway.decode import DecodingOptions
from headway.evaluation import bleu, paired_bootstrap
from headway.hardware import processor_name
from headway.predict import Translator, noisy_channel_features, rank_by_noisy_channel, tune_noisy_channel
from headway.predict.reranking.noisy_channel import NoisyChannelFeatures

CANDIDATES = 8
LENGTH = "length"
# The feature columns that each ranking uses in addition to log p(y | x) and |y|.
RANKINGS = {LENGTH: (), "language model": (1,), "channel": (2,), "language model and channel": (1, 2)}


def without_others(features: list[NoisyChannelFeatures], used: tuple[int, ...]) -> list[NoisyChannelFeatures]:
    """Return the features, with the features of unused models set to zero."""
    unused = [column for column in (1, 2) if column not in used]
    found = [rows.copy() for rows in features]
    for rows in found:
        rows[:, unused] = 0
    return found


def main(
    model: Annotated[Path, typer.Argument(help="Folder of the translation model.")],
    language_model: Annotated[Path, typer.Option(help="Language model of the target language.")],
    channel: Annotated[Path, typer.Option(help="Translation model of the reverse direction.")],
    source: Annotated[Path, typer.Option(help="Source sentences, one per line.")],
    reference: Annotated[Path, typer.Option(help="Reference translations of the sentences.")],
    output: Annotated[Path, typer.Option(help="Write the figures as JSON.")],
) -> None:
    """Translate, rank with each combination, and print BLEU and the differences."""
    sources, references = (path.read_text(encoding="utf-8").splitlines() for path in (source, reference))
    translator, reverse, scorer = (headway.load(folder) for folder in (model, channel, language_model))
    assert isinstance(translator, Translator)
    assert isinstance(reverse, Translator)
    assert isinstance(scorer, headway.LanguageModel)
    found = translator.translate(sources, DecodingOptions(beam_size=CANDIDATES, n_best=CANDIDATES))
    candidates = [[candidate.text for candidate in each.candidates] for each in found]
    features = noisy_channel_features(translator, sources, candidates, language_model=scorer, channel=reverse)
    odd, even = range(0, len(sources), 2), range(1, len(sources), 2)  # lines are counted from 1
    expected = [references[at] for at in even]
    hypotheses = {"first candidate": [candidates[at][0] for at in even]}
    weights: dict[str, Any] = {}
    for name, used in RANKINGS.items():
        own = without_others(features, used)
        chosen = tune_noisy_channel(
            [candidates[at] for at in odd], [own[at] for at in odd], [references[at] for at in odd]
        )
        ranked = rank_by_noisy_channel(candidates, own, chosen)
        hypotheses[name], weights[name] = [ranked[at][0].text for at in even], chosen.model_dump()
    best = [np.argmax([bleu([text], [references[at]]).value for text in candidates[at]]) for at in even]
    hypotheses["best candidate of each line by BLEU"] = [candidates[at][n] for at, n in zip(even, best, strict=True)]
    rows = {
        name: {
            "bleu": bleu(texts, expected).value,
            "weights": weights.get(name),
            "minus first candidate": str(paired_bootstrap(hypotheses["first candidate"], texts, expected)),
            "minus length": str(paired_bootstrap(hypotheses[LENGTH], texts, expected)),
        }
        for name, texts in hypotheses.items()
    }
    for name, row in rows.items():
        print(name, row)
    head = {"date": date.today().isoformat(), "processor": processor_name(), "cores": os.cpu_count()}
    output.write_text(json.dumps(head | {"lines": len(even), "rankings": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
