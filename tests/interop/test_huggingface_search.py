"""Headway's search with imported models finds the same tokens as generate() of `transformers`.

`transformers` and Headway search in the same way with these settings:
  stopping "first"          early_stopping=True: done when as many hypotheses are finished as the beam is wide
  normalization "average"   its length penalty: log-probability / length ** length_penalty, including the end symbol
  forbidden tokens          its suppress_tokens: padding, the begin symbol, the unknown token
  forced_eos_token_id=None  at the limit, a hypothesis ends with the end symbol, whose probability counts
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_models import UNKNOWN, V, drawn, each_family, padded, saved, sentences, transformers
from torch import Tensor

from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.interop.huggingface import ImportedModel, import_model
from headway.interop.huggingface.families import FAMILIES

LIMIT = 12
SOURCE_LENGTHS = (4, 1, 9, 6, 2, 12, 3, 7, 5, 8)
SEEDS = {  # models with different outputs, some of them shorter than the limit
    "marian": (1, 4, 5),
    "m2m_100": (1, 2, 3),
    "bart": (1, 5, 6),
    "mbart": (1, 3, 4),
    "fsmt": (1, 4, 13),
    "pegasus": (1, 2, 3),
}


class EndAtLimit(transformers.LogitsProcessor):  # type: ignore[misc]
    """Headway's rule for hypotheses at the limit."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if ids.size(1) <= LIMIT:
            return scores
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = scores[:, self.end]
        return only


def decided(family: str, seed: int = 1) -> Any:
    """A model whose targets depend on its sources, and some of whose targets are shorter than the limit.

    Attention to the source is sharp and large. One dimension of the last norm's output is constant, and it has a larger
    weight in the end symbol's logit than in the other logits.
    """
    model = drawn(family, seed)
    decoder = model.model.decoder
    pre_norm = FAMILIES[family].model_options["norm"] == "pre"
    last_norm = decoder.layer_norm if pre_norm else decoder.layers[-1].final_layer_norm
    output = decoder.output_projection if family == "fsmt" else model.lm_head
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.copy_(torch.randn_like(weight) * 0.1 + name.endswith("weight"))
            elif "encoder_attn" in name:
                weight.mul_(4)
        last_norm.weight[0], last_norm.bias[0] = 0, 1
        output.weight[:, 0] = 0
        output.weight[model.config.eos_token_id, 0] = 3 if family in ("m2m_100", "bart") else 2
        if FAMILIES[family].has_output_bias:
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias) * 0.1)
    return model


def found_by_transformers(
    model: Any, sources: list[list[int]], unknown: int = UNKNOWN, **settings: Any
) -> list[list[int]]:
    """Return the targets that generate() finds, without the special tokens around them."""
    config = model.config
    source = padded(sources, config.pad_token_id)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(generation|early_stopping|length_penalty).*")
        found = model.generate(
            source,
            attention_mask=(source != config.pad_token_id).long(),
            do_sample=False,
            early_stopping=True,
            max_new_tokens=LIMIT + 1,
            suppress_tokens=sorted(
                {config.pad_token_id, config.decoder_start_token_id, unknown} - {config.eos_token_id}
            ),
            forced_eos_token_id=None,
            logits_processor=transformers.LogitsProcessorList([EndAtLimit(config.eos_token_id)]),
            **settings,
        )
    return [row[1 : row.index(config.eos_token_id, 1)] for row in found.tolist()]


def found_by_headway(
    imported: ImportedModel,
    sources: list[list[int]],
    beam_size: int,
    alpha: float,
    prefix: tuple[int, ...] = (),
    unknown: int = UNKNOWN,
) -> list[list[int]]:
    """Return the targets that Headway finds, in foreign ids."""
    ids = imported.target_vocabulary
    requests = [
        Request(source=imported.source_vocabulary.to_headway_ids(row), limit=LIMIT, prefix=ids.to_headway_ids(prefix))
        for row in sources
    ]
    options = DecodingOptions(beam_size=beam_size, length_penalty=alpha, normalization="average", stopping="first")
    found = search(
        imported.model, requests, options, SearchVocabulary(1, 2, banned=(0, 1, *ids.to_headway_ids([unknown])))
    )
    return [[ids.order[token] for token in hypotheses[0].tokens] for hypotheses in found]


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    ("beam_size", "alpha", "draw"), [(1, 1.0, 0), (1, 1.0, 1), (4, 0.6, 0), (4, 1.0, 1), (4, 1.0, 2), (3, 0.0, 0)]
)
@each_family
def test_searches_find_the_same_tokens(family: str, beam_size: int, alpha: float, draw: int, tmp_path: Path) -> None:
    model = decided(family, SEEDS[family][draw])
    imported = import_model(saved(model, tmp_path))
    sources = sentences(model, SOURCE_LENGTHS, V)
    expected = found_by_transformers(model, sources, num_beams=beam_size, length_penalty=alpha)
    assert len({tuple(row) for row in expected}) >= 4  # sentences differ
    assert len({len(row) for row in expected}) >= 2  # and not all reach the limit
    assert found_by_headway(imported, sources, beam_size, alpha) == expected


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("family", ["m2m_100", "bart"])
def test_a_forced_first_token_is_a_prefix(family: str, beam_size: int, tmp_path: Path) -> None:
    # Its probability counts in Headway but not in generate(). Without a length penalty, this does not change the order.
    model = decided(family)
    imported = import_model(saved(model, tmp_path))
    sources = sentences(model, SOURCE_LENGTHS, V)
    expected = found_by_transformers(model, sources, num_beams=beam_size, length_penalty=0.0, forced_bos_token_id=17)
    assert all(row[0] == 17 for row in expected)
    assert found_by_headway(imported, sources, beam_size, 0.0, prefix=(17,)) == expected
