import itertools

import pytest
import torch
from torch import Tensor

from headway.nn.recurrent import Cell, EncoderOutput, RecurrentEncoder, RecurrentLayer, Summary
from headway.nn.recurrent_decoders import RecurrentAttention

CELLS: list[Cell] = ["gru", "lstm"]


def layer_of(cell: Cell, d_input: int = 3, d_state: int = 4) -> RecurrentLayer:
    """Return a layer with random weights, so that every part affects the results."""
    layer = RecurrentLayer(cell, d_input, d_state)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return layer


# One layer.


def test_one_step_of_a_gru_by_hand() -> None:
    layer = RecurrentLayer("gru", 1, 1)
    with torch.no_grad():
        layer.cell.weight_ih_l0.copy_(torch.tensor([[1.0], [2.0], [3.0]]))  # reset, update, candidate
        layer.cell.weight_hh_l0.copy_(torch.tensor([[-1.0], [0.5], [2.0]]))
        layer.cell.bias_ih_l0.zero_()
        layer.cell.bias_hh_l0.copy_(torch.tensor([0.0, 0.0, 1.0]))
    x, h = torch.tensor(0.3), torch.tensor(-0.7)
    reset, update = torch.sigmoid(x + 0.7), torch.sigmoid(2 * x - 0.35)
    candidate = torch.tanh(3 * x + reset * (2 * h + 1))
    expected = (1 - update) * candidate + update * h
    found, _ = layer(x.view(1, 1, 1), (h.view(1, 1),))
    torch.testing.assert_close(found.squeeze(), expected)


def test_one_step_of_an_lstm_by_hand() -> None:
    layer = RecurrentLayer("lstm", 1, 1)
    with torch.no_grad():
        layer.cell.weight_ih_l0.copy_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))  # input, forget, cell, output
        layer.cell.weight_hh_l0.copy_(torch.tensor([[-1.0], [0.5], [2.0], [0.1]]))
        layer.cell.bias_ih_l0.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
        layer.cell.bias_hh_l0.zero_()
    x, h, c = torch.tensor(0.3), torch.tensor(-0.7), torch.tensor(0.9)
    enter, forget, leave = torch.sigmoid(x + 0.7), torch.sigmoid(2 * x - 0.35 + 1), torch.sigmoid(4 * x - 0.07)
    cell = forget * c + enter * torch.tanh(3 * x - 1.4)
    found, state = layer(x.view(1, 1, 1), (h.view(1, 1), c.view(1, 1)))
    torch.testing.assert_close(found.squeeze(), leave * torch.tanh(cell))
    torch.testing.assert_close(torch.cat(state).squeeze(), torch.stack([leave * torch.tanh(cell), cell]))


@pytest.mark.parametrize("cell", CELLS)
def test_step_by_step_equals_one_call(cell: Cell) -> None:
    layer, x = layer_of(cell), torch.randn(5, 6, 3)
    state = tuple(torch.randn(5, 4) for _ in range(layer.num_states))
    expected, last = layer(x, state)
    for position in range(6):
        # In two parts, like the embedding and the context in a decoder.
        first, second = x[:, position, :1], x[:, position, 1:]
        state = layer.step(layer.gate_inputs(second, layer.gate_inputs(first)), state)
        torch.testing.assert_close(state[0], expected[:, position])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_products_leave_states_near_those_of_float32(cell: Cell) -> None:
    layer, x = layer_of(cell, 16, 16), torch.randn(4, 12, 16)
    exact, _ = layer(x, layer.initial_state(x))
    (expected,) = torch.autograd.grad(exact.square().sum(), [layer.cell.weight_hh_l0])
    with torch.autocast("cpu", torch.bfloat16):
        rounded, state = layer(x, layer.initial_state(x))
    (found,) = torch.autograd.grad(rounded.square().sum(), [layer.cell.weight_hh_l0])
    assert {rounded.dtype, *(part.dtype for part in state)} == {torch.float32}, "states add up: they are not rounded"
    assert 0 < (rounded - exact).abs().max() < 0.03  # states are at most 1; bfloat16 has 8 bits
    assert (found - expected).norm() < 0.03 * expected.norm()


def test_weights_start_as_is_said() -> None:
    layer = RecurrentLayer("lstm", 6, 5)
    for gate in layer.cell.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(5))
    bound = (6 / (6 + 5)) ** 0.5  # Xavier initialization of one gate
    assert 0.8 * bound < layer.cell.weight_ih_l0.abs().max() <= bound
    assert layer.cell.bias_ih_l0.view(4, 5).tolist() == [[0] * 5, [1] * 5, [0] * 5, [0] * 5]
    assert not layer.cell.bias_hh_l0.any()


# The encoder.


def encoder_of(cell: Cell, summary: Summary, *, bidirectional: bool = True, layers: int = 2) -> RecurrentEncoder:
    encoder = RecurrentEncoder(
        cell, 3, 8, layers=layers, bidirectional=bidirectional, vector_pooling=summary, dropout=0.0
    )
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return encoder.eval()


@pytest.mark.parametrize("cell", CELLS)
def test_encoder_equals_pytorch_on_packed_sequences(cell: Cell) -> None:
    encoder = encoder_of(cell, "final")
    peer = (torch.nn.GRU if cell == "gru" else torch.nn.LSTM)(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for index, (forward, backward) in enumerate(zip(encoder.forward_layers, encoder.backward_layers, strict=True)):
            for ours, suffix in ((forward, ""), (backward, "_reverse")):
                for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    weight = ours.get_submodule("cell").get_parameter(f"{kind}_l0")
                    peer.get_parameter(f"{kind}_l{index}{suffix}").copy_(weight)
    x, lengths = torch.randn(4, 7, 3), torch.tensor([3, 7, 1, 6])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    found, (outputs, last) = encoder(x, lengths), peer(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    assert isinstance(found, EncoderOutput)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(found.states[row, :length], expected[row, :length])
        assert found.mask[row].tolist() == [position < length for position in range(7)]
    last = last[0] if cell == "lstm" else last
    torch.testing.assert_close(found.vector, torch.cat([last[-2], last[-1]], 1))


@pytest.mark.parametrize("summary", ["final", "mean", "max"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_vector_is_made_of_real_positions(summary: Summary, bidirectional: bool) -> None:
    encoder = encoder_of("gru", summary, bidirectional=bidirectional, layers=1)
    lengths = torch.tensor([2, 5])
    found = encoder(torch.randn(2, 5, 3), lengths)
    for states, vector, length in zip(found.states, found.vector, lengths.tolist(), strict=True):
        real = states[:length]
        expected = {
            "final": torch.cat([real[-1, :4], real[0, 4:] if bidirectional else real[-1, 4:]]),
            "mean": real.mean(0),
            "max": real.amax(0),
        }[summary]
        torch.testing.assert_close(vector, expected)


# Attention.


def test_attention_by_hand_over_the_beams_of_two_sentences() -> None:
    attention = RecurrentAttention(2, "dot")
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]], [[1.0, 1.0], [2.0, 0.0], [0.0, 3.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    memory = attention.encode_memory(EncoderOutput(states, mask, torch.zeros(2, 2)))
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [0.0, 0.0]])  # two beams of each sentence
    context, weights = attention(queries.unsqueeze(1), memory)

    def softmax(*scores: float) -> Tensor:
        return torch.tensor(scores).exp() / torch.tensor(scores).exp().sum()

    expected = [softmax(1, 0), softmax(0, 2), softmax(2, 2, 3), softmax(0, 0, 0)]
    assert weights.shape == (2, 1, 2, 3)
    for row, (sentence, beam) in enumerate(itertools.product(range(2), range(2))):
        length = len(expected[row])
        torch.testing.assert_close(weights[sentence, 0, beam, :length], expected[row])
        assert not weights[sentence, 0, beam, length:].any()
        torch.testing.assert_close(context[row, 0], expected[row] @ states[sentence, :length])
