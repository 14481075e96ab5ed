import math
import random
from typing import Any

import pytest
import torch
from state_life import StateLife
from torch import Tensor
from torch.nn import functional as F

from headway.decode import DecodingOptions, Request, SearchModel, SearchVocabulary, search
from headway.errors import ConfigError
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.nn.attention import record_attention
from headway.nn.recurrent import as_recurrent_layers

V = 11
SMALL: dict[str, Any] = {"d_model": 8, "d_embedding": 6, "dropout": 0.0}
LSTM: dict[str, Any] = {"cell": "lstm", "encoder_layers": 2, "decoder_layers": 2}
FORMS: dict[str, dict[str, Any]] = {
    "cho": {"attention": "none"},
    "cho-lstm": {"attention": "none", "summary": "mean", "bidirectional": False, **LSTM},
    "sutskever": {"attention": "none", "context": "start", "summary": "max", "tie": "none"},
    "sutskever-lstm": {"attention": "none", "context": "start", "d_embedding": 8, "bidirectional": False, **LSTM},
    "bahdanau": {"attention": "bahdanau", "score_hidden": 3},
    "bahdanau-lstm": {"attention": "bahdanau", "score": "cosine", **LSTM},
    "luong": {"attention": "luong"},
    "luong-lstm": {"attention": "luong", "score": "scaled_dot", "bidirectional": False, **LSTM},
    "feeding": {"attention": "luong", "score": "dot", "input_feeding": True, "decoder_layers": 2},
    "feeding-lstm": {"attention": "luong", "score": "feed_forward", "input_feeding": True, **LSTM},
}
ATTENDING = [name for name, form in FORMS.items() if form["attention"] != "none"]


def recurrent(**changes: Any) -> RecurrentModel:
    """Return a small model with random weights, so that every part affects the results."""
    model = RecurrentModel(RecurrentConfig.parse({**SMALL, **changes}, "test"), V, V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def model(request: pytest.FixtureRequest) -> RecurrentModel:
    return recurrent(**request.param)


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape)


# The equations for one sentence and one position at a time, with the weights' public names.


class Slow:
    """A model computed only from its state dict."""

    def __init__(self, model: RecurrentModel) -> None:
        self.config, self.w = model.config, {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self.width = self.config.d_embedding or self.config.d_model

    def linear(self, name: str, x: Tensor) -> Tensor:
        mapped: Tensor = self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]
        return mapped

    def step(self, layer: str, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        w = {name: self.w[f"{layer}.cell.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        a, b, h = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ state[0] + w["bias_hh"], state[0]
        if self.config.cell == "gru":
            (ar, az, an), (br, bz, bn) = a.chunk(3), b.chunk(3)
            z = (az + bz).sigmoid()
            return [(1 - z) * (an + (ar + br).sigmoid() * bn).tanh() + z * h]
        i, f, g, o = (a + b).chunk(4)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * c.tanh(), c]

    def read(self, layer: str, xs: list[Tensor]) -> list[Tensor]:
        width = self.w[f"{layer}.cell.weight_hh_l0"].size(1)
        state, states = [torch.zeros(width), torch.zeros(width)], []
        for x in xs:
            state = self.step(layer, x, state)
            states.append(state[0])
        return states

    def encode(self, source: list[int]) -> tuple[Tensor, Tensor]:
        xs = [self.w["source_embedding.weight"][token] * self.width**0.5 for token in source]
        ends: list[Tensor] = []
        for index in range(self.config.encoder_layers):
            ys = self.read(f"encoder.forward_layers.{index}", xs)
            ends = [ys[-1]]
            if self.config.bidirectional:
                back = self.read(f"encoder.backward_layers.{index}", xs[::-1])
                ends.append(back[-1])
                ys = [torch.cat(pair) for pair in zip(ys, back[::-1], strict=True)]
            xs = ys
        states = torch.stack(xs)
        vector = {"final": torch.cat(ends), "mean": states.mean(0), "max": states.max(0).values}
        return states, vector[self.config.summary]

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        w = {name.rsplit(".", 1)[1]: tensor for name, tensor in self.w.items() if ".score." in name}
        score = torch.tensor(math.nan)
        match self.config.score or {"bahdanau": "additive", "luong": "general"}[self.config.attention]:
            case "dot":
                score = query @ key
            case "scaled_dot":
                score = query @ key / math.sqrt(len(query))
            case "general":
                score = query @ w["weight"][0] @ key
            case "cosine":
                score = w["log_scale"].exp()[0] * (query @ key) / (query.norm() * key.norm())
            case "additive":
                score = (query @ w["query"][0] + key @ w["key"][0]).tanh() @ w["vector"][0, :, 0]
            case "feed_forward":
                hidden = query @ w["query"][0] + key @ w["key"][0] + w["bias"][0, 0]
                score = hidden.clamp(min=0) @ w["vector"][0, :, 0]
        return score

    def attend(self, query: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.stack([self.score(query, key) for key in states]).softmax(0)
        return weights @ states, weights

    def maxout(self, x: Tensor) -> Tensor:
        first, second = self.linear("decoder.readout.linear", x).chunk(2)
        return torch.where(first > second, first, second)

    def through(self, x: Tensor, hidden: list[list[Tensor]]) -> Tensor:
        """Run all decoder layers, and update their states."""
        for index, state in enumerate(hidden):
            hidden[index] = self.step(f"decoder.layers.{index}", x, state)
            x = hidden[index][0]
        return x

    def __call__(self, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
        """Return logits (T, V) and weights (T, S)."""
        config, (states, z) = self.config, self.encode(source)
        parts = list(self.linear("decoder.bridge", z).view(-1, config.d_model))
        if config.cell == "gru":
            hidden = [[part.tanh()] for part in parts]
        else:
            hidden = [[h.tanh(), c] for h, c in zip(parts[::2], parts[1::2], strict=True)]
        logits, seen, fed = [], [], torch.zeros(self.width)
        for token in target:
            y, weights = self.w["target_embedding.weight"][token] * self.width**0.5, torch.zeros(len(source))
            match config.attention, config.context:
                case "none", "start":
                    out = self.through(y, hidden)
                case "none", _:
                    out = self.maxout(torch.cat([self.through(torch.cat([y, z]), hidden), y, z]))
                case "bahdanau", _:
                    c, weights = self.attend(hidden[0][0], states)
                    out = self.maxout(torch.cat([self.through(torch.cat([y, c]), hidden), y, c]))
                case _:
                    h = self.through(torch.cat([y, fed]) if config.input_feeding else y, hidden)
                    c, weights = self.attend(h, states)
                    out = fed = self.linear("decoder.combine", torch.cat([c, h])).tanh()
            logits.append(self.w["projection.weight"] @ out)
            seen.append(weights)
        return torch.stack(logits), torch.stack(seen)


def test_equations(model: RecurrentModel) -> None:
    source, target = random_tokens(1, 5), random_tokens(1, 4)
    with record_attention(getattr(model.decoder, "attention", model)) as seen:
        found = model(source, target)[0]
    expected, weights = Slow(model)(source[0].tolist(), target[0].tolist())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if seen:
        map_ = torch.cat(seen, 2)  # for all target positions, which some decoders compute one by one
        assert map_.shape == (1, 1, 4, 5)
        torch.testing.assert_close(map_[0, 0], weights, atol=1e-5, rtol=1e-5)


def test_every_weight_is_learned(model: RecurrentModel) -> None:
    model.train()
    torch.autograd.backward(model(random_tokens(3, 5), random_tokens(3, 4)).square().sum())
    silent = {
        name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    }
    assert silent == set()


# What the model may attend to.


@torch.no_grad()
def test_the_future_cannot_leak(model: RecurrentModel) -> None:
    source, target = random_tokens(2, 5), random_tokens(2, 6)
    logits = model(source, target)
    for position in range(6):
        changed = target.clone()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        other = model(source, changed)
        torch.testing.assert_close(other[:, :position], logits[:, :position])
        assert not torch.isclose(other[:, position], logits[:, position]).all(-1).any()


@torch.no_grad()
def test_every_source_token_reaches_every_position(model: RecurrentModel) -> None:
    source, target = random_tokens(1, 5), random_tokens(1, 3)
    logits = model(source, target)
    for position in range(5):
        changed = source.clone()
        changed[:, position] = changed[:, position] % (V - 1) + 1
        assert (model(changed, target) != logits).any(-1).all()


@torch.no_grad()
def test_padding_changes_nothing(model: RecurrentModel) -> None:
    sources, targets = [random_tokens(n) for n in (6, 1, 4)], [random_tokens(n) for n in (2, 7, 5)]

    def padded(rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)

    together = model(F.pad(padded(sources), (0, 2)), padded(targets))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(source.unsqueeze(0), target.unsqueeze(0))[0]
        torch.testing.assert_close(together[row, : len(target)], alone, atol=1e-5, rtol=1e-5)


def test_a_source_without_tokens_is_no_accident(model: RecurrentModel) -> None:
    assert model(torch.zeros(2, 3, dtype=torch.long), random_tokens(2, 3)).isfinite().all()


def test_dropout_is_of_pytorchs_generator_and_acts_everywhere() -> None:
    """The same seed gives the same result, and different seeds drop different units."""
    for form in FORMS.values():
        model, source, target = recurrent(**{**form, "dropout": 0.4}), random_tokens(2, 5), random_tokens(2, 4)
        without = model(source, target)
        model.train()
        found = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(model(source, target))
        assert torch.equal(found[0], found[1])
        assert not torch.isclose(found[0], found[2]).all(-1).any()
        assert not torch.isclose(found[0], without).all(-1).any()


def test_layers_are_dropped_out_between(model: RecurrentModel) -> None:
    """At a probability of nearly one, no output of a lower layer reaches a higher layer."""
    if model.config.decoder_layers == 1:
        return
    model = recurrent(**{**model.config.as_dict(), "dropout": 0.99999})
    model.decoder.dropout.train()
    state = model.start(random_tokens(2, 5).tolist())
    upper = as_recurrent_layers(model.decoder.layers)[1]
    before = state.layers[1]
    expected = upper.step(upper.gate_inputs(torch.zeros(2, 8)), before)
    model.step(state, random_tokens(2)).logits()
    torch.testing.assert_close(state.layers[1], expected)


# Decoding.


def test_is_a_search_model(model: RecurrentModel) -> None:
    assert isinstance(model, SearchModel)
    assert model.max_length is None


@pytest.mark.parametrize("seed", range(1))
@torch.no_grad()
def test_rows_survive_every_reordering(model: RecurrentModel, seed: int) -> None:
    random.seed(seed)
    StateLife(model, random_tokens).reorder_admit_and_leave(steps=9)


@pytest.mark.parametrize("form", ATTENDING)
@torch.no_grad()
def test_attention_of_beams_is_that_of_their_sentences(form: str) -> None:
    model = recurrent(**FORMS[form])
    sources = [random_tokens(3), random_tokens(5)]
    state = model.start([source.tolist() for source in sources], beams=2)
    tokens = random_tokens(2, 4)
    for step in tokens:
        attended = model.step(state, step, attention=True)
    assert attended.attention is not None
    assert attended.attention.shape == (4, 5)
    for row in range(4):
        source = sources[row // 2].tolist()
        logits, weights = Slow(model)(source, tokens[:, row].tolist())
        torch.testing.assert_close(attended.logits()[row], logits[-1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(attended.attention[row, : len(source)], weights[-1], atol=1e-5, rtol=1e-5)
        assert not attended.attention[row, len(source) :].any()


def test_a_model_without_attention_attends_to_nothing() -> None:
    model = recurrent(attention="none")
    assert model.step(model.start([[5, 6]]), random_tokens(1), attention=True).attention is None
    with pytest.raises(ConfigError, match="this RecurrentModel does not return attention weights"):
        search(model, [Request(source=(5, 2), limit=3)], DecodingOptions(coverage_penalty=0.1), SearchVocabulary(1, 2))


# The model learns.


def learned(steps: int, length: int, *, rate: float, **form: Any) -> float:
    """Return the accuracy on sequences to be reversed, after training for the given number of steps."""
    torch.manual_seed(3)
    model = RecurrentModel(RecurrentConfig.parse({"d_model": 32, "dropout": 0.0, **form}, "test"), 8, 8)
    optimizer = torch.optim.Adam(model.parameters(), rate)

    def drawn(count: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(3, 8, (count, length))
        source, expected = F.pad(symbols, (0, 1), value=2), F.pad(symbols.flip(1), (0, 1), value=2)
        return model(source, F.pad(expected[:, :-1], (1, 0), value=1)), expected

    for _ in range(steps):
        logits, expected = drawn(16)
        torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), expected.flatten()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        logits, expected = drawn(100)
    return float((logits.argmax(-1) == expected).float().mean())


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_learns_to_turn_sequences_round(form: dict[str, Any]) -> None:
    assert learned(40, 2, rate=0.03, **{**form, "encoder_layers": 1, "decoder_layers": 1, "d_embedding": 32}) > 0.95


@pytest.mark.slow
def test_attention_learns_what_a_fixed_vector_cannot_hold() -> None:
    assert learned(110, 9, rate=0.02, cell="lstm", attention="luong") > 0.9
    assert learned(110, 9, rate=0.02, cell="lstm", attention="none") < 0.75


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 7}, "d_model = 7 cannot be halved for the encoder's two directions"),
        ({"context": "start"}, "context = 'start' selects when a decoder without attention uses z"),
        ({"attention": "none", "score": "dot"}, "score = 'dot' is an option of attention, but attention = 'none'"),
        ({"score": "dot", "score_hidden": 5}, "score_hidden = 5 is the width of a hidden layer, but score = 'dot' has"),
        ({"attention": "none", "score_hidden": 5}, "score_hidden = 5 is .* score = None has no hidden layer"),
        ({"input_feeding": True}, "input_feeding = true is an option of attention = 'luong', but attention"),
        (
            {"attention": "none", "context": "start", "d_embedding": 4, "d_model": 8},
            "tie = 'all' with context = 'start' needs d_embedding = d_model",
        ),
        ({"preset": "lung"}, "preset = 'lung': expected one of cho, sutskever, bahdanau, luong"),
        ({"preset": "cho", "score": "dot"}, "attention = 'none'; remove score"),
        ({"num_heads": 8}, "unknown key 'num_heads'"),
        ({"cell": "rnn"}, "cell = 'rnn'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RecurrentConfig.parse(options, "test")


def test_configurations_survive_being_written() -> None:
    for form in FORMS.values():
        config = RecurrentConfig.parse({**SMALL, **form}, "test")
        assert RecurrentConfig.parse(config.as_dict(), "test") == config


def test_one_matrix_for_all_needs_one_vocabulary() -> None:
    with pytest.raises(ConfigError, match="tie = 'all' needs one vocabulary for both sides, but the source has 20"):
        RecurrentModel(RecurrentConfig.parse(SMALL, "test"), 20, 30)
    for tie in ("target", "none"):
        model = RecurrentModel(RecurrentConfig.parse({**SMALL, "tie": tie, "output_bias": True}, "test"), 20, 30)
        assert model(torch.full((1, 3), 19), torch.full((1, 2), 29)).shape == (1, 2, 30)
        assert not model.projection.bias.any()


def test_ties() -> None:
    everything, target, none = (recurrent(tie=tie) for tie in ("all", "target", "none"))
    assert everything.source_embedding.weight is everything.target_embedding.weight
    assert everything.target_embedding.weight is everything.projection.weight
    assert target.source_embedding.weight is not target.target_embedding.weight
    assert target.target_embedding.weight is target.projection.weight
    weights = (none.source_embedding.weight, none.target_embedding.weight, none.projection.weight)
    assert len({id(weight) for weight in weights}) == 3


@pytest.mark.parametrize("name", ["cho", "sutskever", "bahdanau", "luong"])
def test_presets_have_the_sizes_of_their_papers(name: str) -> None:
    config = RecurrentConfig.preset(name)
    sizes = {
        # cell, units of an encoder's layer and direction, embedding, layers, hidden layer of the score: Cho 2014
        # section 4.1.1 (500 are the maxout units'); Sutskever 2014 section 3.4; Bahdanau 2015 appendix A.2.3
        # (RNNsearch); Luong 2015 section 4.1.
        "cho": ("gru", 1000, 500, 1, None),
        "sutskever": ("lstm", 1000, 1000, 4, None),
        "bahdanau": ("gru", 1000, 620, 1, 1000),
        "luong": ("lstm", 1000, 1000, 4, None),
    }[name]
    units = config.d_model // (1 + config.bidirectional)
    assert (config.cell, units, config.d_embedding, config.encoder_layers, config.score_hidden) == sizes
    with torch.device("meta"):  # counted without allocating memory
        model = RecurrentModel(config, 50, 50)
    recurrent_units = model.encoder.forward_layers[0].get_submodule("cell").get_parameter("weight_hh_l0").size(1)
    assert recurrent_units == units
    if config.score_hidden:
        assert model.get_submodule("decoder.attention.score").get_parameter("query").shape == (1, 2000, 1000)


def test_another_score_beside_a_preset_leaves_out_its_hidden_layer() -> None:
    assert RecurrentConfig.preset("bahdanau", score="dot").score_hidden is None
    assert RecurrentConfig.preset("bahdanau", score="feed_forward").score_hidden == 1000
    assert RecurrentConfig.preset("bahdanau", score_hidden=7).score_hidden == 7
