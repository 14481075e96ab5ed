"""Random combinations of all options: accelerated and plain models agree, and fast forms are used if they exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from config_variants import CONFIGS, REFUSED, random_config, searches_in_plain_form, undeclared, variants
from fast_and_plain import VOCABULARY, assert_equal_outcomes, assert_fast_where_possible, build, small_blocks
from torch import Tensor

from headway import kernels
from headway.config import Config, to_toml
from headway.engine import Precision, describe_search_form, to_search_model, unsupported_reason
from headway.engine.accelerate import accelerate
from headway.engine.search_model import SearchDecoderOnly, SearchTransformer
from headway.models.classifier import ClassifierConfig
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.masked import MaskedConfig
from headway.models.recurrent import RecurrentConfig
from headway.models.recurrent_lm import RecurrentLMConfig
from headway.models.registry import architecture_of
from headway.models.sequence_classifier import SequenceClassifierConfig
from headway.models.transformer import TransformerConfig
from headway.nn.embedding import pad_sequences

# Many of the models are Transformers, which have the most options and the most fast forms.
DRAWN = (TransformerConfig, ClassifierConfig, TransformerConfig, RecurrentConfig, DecoderOnlyConfig)
COMBINATIONS: list[Any] = [
    *(random_config(DRAWN[seed % len(DRAWN)], seed) for seed in range(100)),
    *(random_config(RecurrentLMConfig, seed) for seed in range(100, 112)),
    *(random_config(MaskedConfig, seed) for seed in range(112, 132)),
    *(random_config(SequenceClassifierConfig, seed) for seed in range(132, 144)),
    random_config(RecurrentConfig, 174),  # one with another context vector
]
QUICK = 40  # combinations in the quick suite; `make test-all` runs the others
EACH = [
    pytest.param(config, id=str(seed), marks=[pytest.mark.slow] * (seed >= QUICK))
    for seed, config in enumerate(COMBINATIONS)
]
EACH_COMBINATION = pytest.mark.parametrize("config", EACH)
DECODING = [architecture_of(config).capability in ("translates", "continues") for config in COMBINATIONS]
EACH_THAT_DECODES = pytest.mark.parametrize(
    "config", [each for each, decodes in zip(EACH, DECODING, strict=True) if decodes]
)
# The distance of log-probabilities from those of the plain float32 model, as a fraction of their spread. A missing bias
# or mask changes them by 30 % and more; rounding has changed them by up to 4e-6, 2 % and 10 %.
# Outlier channels change int8 more: see tests/predict/language_modeling/test_int8_check.py.
# Three times the distance of the plain model in bfloat16 is added: it has been 20 % in a model without norms.
LIMITS: dict[Precision, float] = {"float32": 1e-4, "bfloat16": 0.05, "int8": 0.15}


@contextmanager
def shown(config: Config) -> Iterator[None]:
    """Add the config to a failure, as a part of a recipe."""
    try:
        yield
    except Exception as error:
        error.add_note("\n" + to_toml({"model": config.as_dict()}))
        raise


@pytest.mark.parametrize("config", CONFIGS)
def test_the_combinations_vary_each_option(config: type[Config]) -> None:
    assert undeclared(config) == [], "give values for these fields in config_variants.py"
    found = [each for each in COMBINATIONS if type(each) is config]
    for name in config.model_fields:
        if name != "kind" and (config, name) not in REFUSED:
            assert len({getattr(each, name) for each in found}) > 1, name


@pytest.mark.slow_but_every(4)
@EACH_COMBINATION
def test_training_and_evaluation_are_plain_ones(config: Config) -> None:
    with shown(config):
        assert_equal_outcomes(config)


@EACH_COMBINATION
def test_whatever_has_a_fast_form_gets_it(config: Any) -> None:
    model = accelerate(build(config))
    with shown(config):
        assert_fast_where_possible(config, model)
        if isinstance(config, (TransformerConfig, DecoderOnlyConfig)):
            plain, form = searches_in_plain_form(config), describe_search_form(model)
            expected = "plain: " if plain else "optimized"
            assert form.startswith(expected), f"{form}; expected {expected!r} by PLAIN_SEARCH in config_variants.py"
            assert isinstance(to_search_model(model), (SearchDecoderOnly, SearchTransformer)) is not plain


def prefixes_and_logits(model: Any, search_model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Decode random tokens with beams that split, swap and leave, and a sequence that comes later.

    Yield the logits of each step of ``search_model``, and the logits of ``model`` for the same prefixes.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        return torch.randint(4, VOCABULARY, (count,), generator=generator)

    sources = [draw(length).tolist() for length in (7, 3, 5)]
    state = search_model.start(sources)
    prefixes, beams = torch.ones(3, 1, dtype=torch.long), 1
    for step in range(8):
        found = search_model.step(state, prefixes[:, -1]).logits()
        rows = [source for source in sources for _ in range(beams)]
        yield found.float(), whole_pass(model, rows, prefixes)
        kept = torch.arange(1, len(sources)) if step == 4 else None
        sources = sources[1:] if step == 4 else sources
        old = torch.arange(len(prefixes)).view(-1, beams)[kept if kept is not None else slice(None)]
        chosen = torch.stack([row[torch.randint(beams, (2,), generator=generator)] for row in old]).flatten()
        search_model.reorder_rows(state, chosen, kept)
        beams = 2
        prefixes = torch.cat([prefixes[chosen], draw(len(chosen)).unsqueeze(1)], 1)


def whole_pass(model: Any, sources: list[list[int]], prefixes: Tensor) -> Any:
    """Return the logits after each row in one pass: of a source and a target, or of a prompt and its continuation."""
    if architecture_of(model.config).capability != "continues":
        return model(pad_sequences(sources, 0, model.device), prefixes)[:, -1]
    rows = [torch.tensor([[*source, *prefix]]) for source, prefix in zip(sources, prefixes.tolist(), strict=True)]
    return torch.cat([model(row)[:, -1] for row in rows])


def distances(plain: Any, search_model: Any) -> list[float]:
    """Return the distance of each step's log-probabilities from those of ``plain``, as a fraction of their spread."""
    found = []
    for ours, expected in prefixes_and_logits(plain, search_model):
        ours, expected = (each.log_softmax(-1) for each in (ours, expected))
        spread = expected - expected.mean(-1, keepdim=True)
        found.append(float((ours - expected).norm() / spread.norm()))
    return found


def assert_equal_steps(plain: Any, search_model: Any, precision: Precision = "float32") -> None:
    rounding = 0.0 if precision == "float32" else max(distances(plain, deepcopy(plain).bfloat16()))
    assert max(distances(plain, search_model)) < LIMITS[precision] + 3 * rounding


@pytest.mark.slow_but_every(4)
@EACH_THAT_DECODES
def test_decoding_step_by_step_is_the_plain_forward_pass(config: Config) -> None:
    plain = build(config).eval()
    with shown(config), torch.inference_mode(), small_blocks():
        fast = accelerate(deepcopy(plain))
        assert_equal_steps(plain, fast)
        if describe_search_form(fast).startswith("optimized"):
            for precision in LIMITS:
                if (precision != "int8" or kernels.available()) and unsupported_reason(fast, precision) is None:
                    assert_equal_steps(plain, to_search_model(fast, precision), precision)


# Dropout, which only training uses, is compared in training.
OPTIONS = [
    pytest.param(config, id=f"{kind.__name__} {name}")
    for kind in (TransformerConfig, DecoderOnlyConfig)
    for name, config in variants(kind)
    if "dropout" not in name
]


@pytest.mark.slow_but_every(8)
@pytest.mark.parametrize("config", OPTIONS)
def test_each_value_of_each_option_is_searched_like_the_plain_model_or_refused(config: Any) -> None:
    plain = build(config).eval()
    with shown(config), torch.inference_mode():
        for precision in LIMITS:
            if precision != "int8" or kernels.available():
                if searches_in_plain_form(config):
                    assert unsupported_reason(plain, precision)
                elif unsupported_reason(plain, precision) is None:
                    assert_equal_steps(plain, to_search_model(plain, precision), precision)
