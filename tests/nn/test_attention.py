import copy
import math
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.nn import (
    KeysValues,
    MultiHeadAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from headway.nn.attention import attention_is_observed, observe_attention, record_attention
from headway.nn.scores import ScoreKind

X = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]])


def random_mask(*shape: int) -> Tensor:
    """Return a mask in which every query may attend to something."""
    mask = torch.rand(*shape) < 0.6
    mask[..., 0] = True
    return mask


# Worked by hand.


def test_weights_of_three_words_worked_by_hand() -> None:
    # Q K^T / sqrt(3) has the rows (1, 2, 0), (2, 4, 0) and (0, 0, 1) over sqrt(3); with a = e^(1 / sqrt 3) = 1.7813 the
    # first row is (a, a^2, 1) / (a + a^2 + 1), the second (a^2, a^4, 1), the third (1, 1, a), each over its sum.
    a = math.exp(1 / math.sqrt(3))
    rows = torch.tensor([[a, a**2, 1], [a**2, a**4, 1], [1, 1, a]])
    weights = attention_weights(X, X)
    torch.testing.assert_close(weights, rows / rows.sum(-1, keepdim=True))
    expected = [[0.2992, 0.5329, 0.1679], [0.2228, 0.7070, 0.0702], [0.2645, 0.2645, 0.4711]]
    assert [[round(float(w), 4) for w in row] for row in weights] == expected


def test_three_words_attend_to_each_other() -> None:
    # The second value is (0, 0, 2): the first row is .1679 x (1, 0, 0) + (.2992 + 2 x .5329) x (0, 0, 1).
    output = scaled_dot_product_attention(X, X, X)
    torch.testing.assert_close(output[0], torch.tensor([0.1679, 0.0, 1.3650]), atol=2e-4, rtol=0)


def test_a_single_query_attends_wholly_to_itself() -> None:
    x = torch.randn(1, 5)
    assert attention_weights(x, x).tolist() == [[1.0]]
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x), x)


def test_causal_weights_worked_by_hand() -> None:
    # All scores are equal, so a query distributes its weight evenly over the keys that it may attend to.
    zeros = torch.zeros(1, 3, 4)
    weights = attention_weights(zeros, zeros, causal_mask(3))
    torch.testing.assert_close(weights[0], torch.tensor([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]))


# Masks.


def test_a_masked_key_has_no_effect() -> None:
    query, key, value = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    mask = torch.tensor([True, True, False, True, False])
    kept = mask.nonzero().squeeze(1)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, mask),
        scaled_dot_product_attention(query, key[:, kept], value[:, kept]),
    )


def test_masked_is_a_score_of_minus_infinity() -> None:
    query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    mask = random_mask(2, 3, 5)
    scores = torch.einsum("btk,bsk->bts", query, key) / math.sqrt(4)
    expected = scores.masked_fill(~mask, -math.inf).softmax(-1)
    torch.testing.assert_close(attention_weights(query, key, mask), expected)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 1, 5), (1, 3, 5), (3, 5), (1, 5), (5,), (2, 3, 1)])
def test_a_row_that_may_attend_to_nothing_is_zero_with_finite_gradients(shape: tuple[int, ...]) -> None:
    query, key, value = (torch.randn(2, n, 4, requires_grad=True) for n in (3, 5, 5))
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1, shape[-1])[-1] = False  # the last row of the mask allows nothing
    closed = ~mask.expand(2, 3, 5).any(-1)
    assert closed.any()
    output = scaled_dot_product_attention(query, key, value, mask)
    assert (output[closed] == 0).all()
    assert closed.all() or (output[~closed] != 0).any()
    gradients = torch.autograd.grad(output.square().sum() + output.sum(), (query, key, value))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][closed] == 0).all()


def test_rows_of_weights_sum_to_one_or_to_zero() -> None:
    mask = random_mask(2, 3, 5)
    mask[1, 2] = False
    sums = attention_weights(torch.randn(2, 3, 4), torch.randn(2, 5, 4), mask).sum(-1)
    torch.testing.assert_close(sums, mask.any(-1).float())


def test_equals_pytorchs_function() -> None:
    query, key, value = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 6)
    mask = random_mask(2, 1, 7, 9)
    ours = scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))


# Multi-head attention.


def pytorchs_twin(ours: MultiHeadAttention, d_model: int) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(d_model, ours.num_heads, batch_first=True)
    state = ours.state_dict()
    theirs.load_state_dict(
        {f"in_proj_{kind}": torch.cat([state[f"{part}.{kind}"] for part in ("query", "key", "value")])
         for kind in ("weight", "bias")}
        | {f"out_proj.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}
    )  # fmt: skip
    return theirs


def randomised(module: nn.Module) -> None:
    """Initialize all weights at random, including the biases, which would start at zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)


@pytest.mark.parametrize("cross", [False, True])
def test_equals_pytorchs_module(cross: bool) -> None:
    ours = MultiHeadAttention(12, 3)
    randomised(ours)
    theirs = pytorchs_twin(ours, 12)
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    source = memory if cross else x
    tokens = torch.ones(2, source.size(1), dtype=torch.long)
    tokens[1, -2:] = 0
    mask = padding_mask(tokens, 0)
    if not cross:
        mask = mask & causal_mask(5)
    expected, _ = theirs(
        x, source, source, key_padding_mask=tokens == 0, attn_mask=None if cross else ~causal_mask(5).squeeze(0)
    )
    torch.testing.assert_close(ours(x, memory if cross else None, mask=mask), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_heads_computed_one_by_one(bias: bool) -> None:
    # Section 3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V); d_k = 5, d_v = 3.
    module = MultiHeadAttention(8, 2, d_key=5, d_value=3, bias=bias)
    randomised(module)
    state = module.state_dict()
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 6, 8)

    def projected(name: str, head: int, width: int, inputs: Tensor) -> Tensor:
        part = slice(head * width, (head + 1) * width)
        return F.linear(inputs, state[f"{name}.weight"][part], state[f"{name}.bias"][part] if bias else None)

    heads = []
    for i in range(2):
        query, key = projected("query", i, 5, x), projected("key", i, 5, memory)
        scores = torch.einsum("btk,bsk->bts", query, key) / math.sqrt(5)
        heads.append(scores.softmax(-1) @ projected("value", i, 3, memory))
    expected = F.linear(torch.cat(heads, -1), state["output.weight"], state["output.bias"] if bias else None)
    torch.testing.assert_close(module(x, memory), expected)


def test_attention_to_itself_by_one_product_or_by_three() -> None:
    module = MultiHeadAttention(8, 2)
    randomised(module)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(module(x), module(x, x))


def test_keys_and_values_can_be_computed_once() -> None:
    module = MultiHeadAttention(8, 2)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    kv = module.project_memory(memory)
    assert isinstance(kv, KeysValues)
    assert kv.keys.shape == (2, 2, 3, 4)
    torch.testing.assert_close(module.attend(module.project_queries(x), kv), module(x, memory))


def test_a_bias_can_be_left_out() -> None:
    names = MultiHeadAttention(8, 2, bias=False).state_dict()
    assert sorted(names) == ["key.weight", "output.weight", "query.weight", "value.weight"]


def test_weights_have_the_papers_names_and_come_back() -> None:
    module, other = MultiHeadAttention(8, 2, d_key=3, d_value=5), MultiHeadAttention(8, 2, d_key=3, d_value=5)
    randomised(module)
    state = module.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == {
        **{f"{name}.weight": (6, 8) for name in ("query", "key")},
        **{f"{name}.bias": (6,) for name in ("query", "key")},
        "value.weight": (10, 8), "value.bias": (10,), "output.weight": (8, 10), "output.bias": (8,),
    }  # fmt: skip
    other.load_state_dict(state)
    assert set(state) == set(shapes), "loading took names out of the caller's dictionary"
    x = torch.randn(1, 4, 8)
    assert torch.equal(module(x), other(x))


def test_a_copy_loads_its_own_weights() -> None:
    module = MultiHeadAttention(8, 2)
    twin = copy.deepcopy(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    twin.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in before.items()})
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all((tensor == 0).all() for tensor in twin.state_dict().values())


@pytest.mark.parametrize("change", [{"query.weight": None}, {"query.wait": torch.zeros(8, 8)}])
def test_names_that_are_missing_or_foreign_are_refused(change: dict[str, Tensor | None]) -> None:
    module = MultiHeadAttention(8, 2)
    state = {name: tensor for name, tensor in {**module.state_dict(), **change}.items() if tensor is not None}
    with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
        module.load_state_dict(state)


def test_an_observer_sees_the_weights_and_changes_nothing() -> None:
    module = MultiHeadAttention(8, 2).eval()
    x, memory = torch.randn(3, 4, 8), torch.randn(3, 6, 8)
    mask = random_mask(3, 4, 6)
    without = module(x, memory, mask=mask)
    with record_attention(module) as seen:
        observed = module(x, memory, mask=mask)
    module(x, memory, mask=mask)
    assert len(seen) == 1
    assert seen[0].shape == (3, 2, 4, 6)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(3, 2, 4))
    assert (seen[0].masked_select(~mask.unsqueeze(1)) == 0).all()
    assert torch.equal(observed, without)


def test_an_observer_may_replace_the_weights() -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    with observe_attention(lambda _module, weights: torch.zeros_like(weights)):
        torch.testing.assert_close(module(x), module.output.bias.expand(1, 4, 8))


def test_observers_nest_and_the_inner_one_receives_what_the_outer_one_returns() -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    with observe_attention(lambda _module, weights: torch.zeros_like(weights)):
        with record_attention(module) as seen:
            module(x)
        module(x)
    module(x)
    assert [each.abs().sum().item() for each in seen] == [0.0]


def test_an_observer_sees_only_its_own_thread() -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 4, 8)
    with record_attention(module) as seen, ThreadPoolExecutor(1) as other:
        other.submit(module, x).result()
        assert not other.submit(attention_is_observed).result()
        assert attention_is_observed()
    assert seen == []
    assert not attention_is_observed()


def test_heads_must_divide_the_width_unless_their_own_width_is_given() -> None:
    with pytest.raises(ConfigError, match="num_heads = 3 does not divide d_model = 8; choose a divisor, or set d_key"):
        MultiHeadAttention(8, 3)
    with pytest.raises(ConfigError, match="num_heads = 3 does not divide"):
        MultiHeadAttention(8, 3, d_key=4)
    assert MultiHeadAttention(8, 3, d_key=4, d_value=2)(torch.randn(1, 2, 8)).shape == (1, 2, 8)


def test_dropout_acts_on_weights_in_training_only() -> None:
    plain, dropping = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, dropout=0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(2, 16, 8)
    assert not torch.allclose(dropping(x), plain(x))
    torch.testing.assert_close(dropping.eval()(x), plain(x))


def test_each_projection_starts_by_xaviers_rule_for_its_own_shape() -> None:
    # Uniform on +-sqrt(6 / (inputs + outputs)): the joined matrix of three projections must not count as one. All n
    # draws are below 0.99 of the bound with probability 0.99^n, below 1e-8 for the 2048 draws of the smallest matrix.
    module = MultiHeadAttention(64, 4, d_key=8, d_value=32)
    for name, outputs in {"query": 32, "key": 32, "value": 128}.items():
        bound = math.sqrt(6 / (64 + outputs))
        assert 0.99 * bound < float(module.state_dict()[f"{name}.weight"].abs().max()) <= bound * (1 + 1e-6)
    bound = math.sqrt(6 / (128 + 64))
    assert 0.99 * bound < float(module.output.weight.detach().abs().max()) <= bound * (1 + 1e-6)
    assert all((tensor == 0).all() for name, tensor in module.state_dict().items() if name.endswith("bias"))


def test_a_mask_over_the_keys_alone_broadcasts() -> None:
    attention, x = MultiHeadAttention(8, 2), torch.randn(3, 5, 8)
    keys = torch.tensor([True, True, False, True, False])
    torch.testing.assert_close(attention(x, mask=keys), attention(x, mask=keys.expand(3, 5, 5)))


# Variants.


def heads_by_loop(module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute the heads one by one: queries and keys as the score function needs them, values as projected."""
    assert module.score is not None
    heads = [module.score(query, key)[:, head].softmax(-1) @ value[:, head] for head in range(module.num_heads)]
    return F.linear(torch.cat(heads, -1), module.output.weight, module.output.bias)


@pytest.mark.parametrize("kind", [kind for kind in get_args(ScoreKind) if kind != "scaled_dot"])
def test_other_scores_replace_the_scaled_product(kind: ScoreKind) -> None:
    module = MultiHeadAttention(8, 2, d_key=6, d_value=3, score=kind)
    randomised(module)
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    state = module.state_dict()

    def projected(name: str, inputs: Tensor) -> Tensor:
        part = F.linear(inputs, state[f"{name}.weight"], state[f"{name}.bias"])
        return torch.unflatten(part, -1, (2, -1)).transpose(1, 2)

    for source, found in ((memory, module(x, memory)), (x, module(x))):
        expected = heads_by_loop(module, projected("query", x), projected("key", source), projected("value", source))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_queries_and_keys_may_have_a_hidden_layer() -> None:
    plain, module = MultiHeadAttention(8, 2, d_key=3), MultiHeadAttention(8, 2, d_key=3, qk_projection="hidden")
    added = {f"{name}.{kind}" for name in ("query_outer", "key_outer") for kind in ("weight", "bias")}
    assert set(module.state_dict()) - set(plain.state_dict()) == added
    randomised(module)
    state, x, memory = module.state_dict(), torch.randn(2, 4, 8), torch.randn(2, 5, 8)

    def projected(name: str, inputs: Tensor) -> Tensor:
        hidden = F.linear(inputs, state[f"{name}.weight"], state[f"{name}.bias"]).clamp(min=0)
        outer = F.linear(hidden, state[f"{name}_outer.weight"], state[f"{name}_outer.bias"])
        return torch.unflatten(outer, -1, (2, 3)).transpose(1, 2)

    torch.testing.assert_close(module.project_queries(x), projected("query", x))
    torch.testing.assert_close(module.project_memory(memory).keys, projected("key", memory))
    query, kv = module.project(x)
    torch.testing.assert_close(query, projected("query", x))
    torch.testing.assert_close(kv.keys, projected("key", x))
    torch.testing.assert_close(kv.values, plain_values(module, x))


def plain_values(module: MultiHeadAttention, x: Tensor) -> Tensor:
    state = module.state_dict()
    return torch.unflatten(F.linear(x, state["value.weight"], state["value.bias"]), -1, (2, -1)).transpose(1, 2)


def test_rotary_attention_turns_queries_and_keys() -> None:
    module = MultiHeadAttention(8, 2, rotary=True)
    randomised(module)
    plain = MultiHeadAttention(8, 2)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(2, 5, 8)
    angles = torch.arange(5).unsqueeze(1) * torch.tensor([1.0, 0.01])  # 10000^(-2i / 4)

    def turned(part: Tensor) -> Tensor:
        pairs = torch.view_as_complex(torch.unflatten(part, -1, (2, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    query, kv = plain.project(x)
    expected = plain.attend(turned(query), KeysValues(turned(kv.keys), kv.values))
    torch.testing.assert_close(module(x), expected)
    assert not torch.allclose(module(x), plain(x), atol=1e-3)
    torch.testing.assert_close(module(x, x), plain(x, x))  # a memory has no positions


@pytest.mark.parametrize("kind", ["scaled_dot", "dot", "cosine"])
def test_rotary_attention_depends_only_on_distances(kind: ScoreKind) -> None:
    module = MultiHeadAttention(8, 2, score=kind, rotary=True)
    randomised(module)
    x = torch.randn(2, 5, 8)
    later = torch.cat([torch.randn(2, 3, 8), x], 1)
    mask = torch.arange(8) >= 3
    torch.testing.assert_close(module(later, mask=mask)[:, 3:], module(x), atol=1e-5, rtol=1e-5)


def test_queries_share_the_keys_and_values_of_a_group() -> None:
    grouped = MultiHeadAttention(8, 4, num_kv_heads=2)
    full = MultiHeadAttention(8, 4)
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        state[name] = state[name].unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(grouped(x), full(x))


def test_queries_and_keys_are_normalized_before_they_are_rotated() -> None:
    layer = MultiHeadAttention(8, 2, qk_norm_epsilon=1e-6, rotary=True)
    query, kv = layer.project(100 * torch.randn(2, 3, 8))
    for vectors in (query, kv.keys):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.full((2, 2, 3), 2.0))
