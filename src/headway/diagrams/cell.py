"""Draw the cells of recurrent layers: the equations of a GRU or an LSTM as a graph, with gates as in cuDNN."""

from __future__ import annotations

from headway.diagrams.drawing import Box, Drawing, weights_of
from headway.nn.recurrent import RecurrentLayer

_WIDTH, _GATES = 600.0, -68.0  # width of all gates including the space between them, and y of their bottom edge
# For each input: its x, the y of the line from it to the gates, and the x offset at which it enters a gate.
_INPUTS = {"xₜ  (input)": (-52.0, -34.0, -20.0), "hₜ₋₁  (state before)": (84.0, -50.0, 20.0)}
_CANDIDATE = "Candidate\nn = tanh(W_n xₜ + b_n\n+ r ∘ (U_n hₜ₋₁ + b′_n))"


def draw_cell(layers: dict[str, RecurrentLayer], drawing: Drawing) -> None:
    """Draw the type of cell that all ``layers`` have in common, and list the layers and their widths below it."""
    newest = (_draw_gru if next(iter(layers.values())).num_states == 1 else _draw_lstm)(drawing)
    drawing.arrow(newest.center_x, newest.top, newest.top - 22)
    drawing.text(newest.center_x, newest.top - 28, "hₜ  (output, and state of the next step)")
    y = 10.0
    for name, layer in layers.items():
        weights = f", {drawing.count_new(weights_of(layer)):,} weights" if drawing.show_sizes else ""
        words = f"{name}: x has {layer.cell.input_size:,} units, h has {layer.cell.hidden_size:,}{weights}."
        y = drawing.paragraph(-_WIDTH / 2, y, words, _WIDTH)


def _gate(name: str, symbol: str, activation: str = "σ") -> str:
    return f"{name}\n{symbol} = {activation}(W_{symbol} xₜ\n+ U_{symbol} hₜ₋₁ + b_{symbol})"


def _draw_gates(drawing: Drawing, *gates: str) -> list[Box]:
    """Draw the inputs, the gates, and the lines from the inputs to the gates."""
    pitch = _WIDTH / len(gates)
    boxes = [
        drawing.box(pitch * (number - (len(gates) - 1) / 2), _GATES, gate, "linear" if "tanh" in gate else "softmax",
                    width=pitch - 28, height=58)
        for number, gate in enumerate(gates)
    ]  # fmt: skip
    for name, (x, line, port) in _INPUTS.items():
        drawing.text(x, 0, name)
        for box in boxes:
            drawing.arrow(x, -14, line, box.center_x + port, _GATES)
    return boxes


def _draw_gru(drawing: Drawing) -> Box:
    update, reset, candidate = _draw_gates(drawing, _gate("Update gate", "u"), _gate("Reset gate", "r"), _CANDIDATE)
    drawing.arrow(reset.right, reset.center_y, candidate.left, along="x")
    output = drawing.box(0, _GATES - 100, "New state\nhₜ = u ∘ hₜ₋₁ + (1 − u) ∘ n", "state", width=190)
    for gate, port in ((update, -60.0), (candidate, 60.0)):
        drawing.arrow(gate.center_x, gate.top, gate.top - 22, port, output.bottom)
    drawing.arrow(candidate.center_x + 20, -50, candidate.right + 24, output.center_y, output.right, along="x")
    return output


def _draw_lstm(drawing: Drawing) -> Box:
    forget, enter, candidate, emit = _draw_gates(
        drawing, _gate("Forget gate", "f"), _gate("Input gate", "i"), _gate("Candidate", "g", "tanh"),
        _gate("Output gate", "o"),
    )  # fmt: skip
    memory = drawing.box(0, _GATES - 104, "New cell\ncₜ = f ∘ cₜ₋₁ + i ∘ g", "state", width=170)
    for gate, port, bend in ((forget, -60.0, 32), (enter, -20.0, 20), (candidate, 40.0, 20)):
        drawing.arrow(gate.center_x, gate.top, gate.top - bend, port, memory.bottom)
    drawing.text(forget.left - 4, memory.center_y - 6, "cₜ₋₁  (cell before)", anchor="start")
    drawing.arrow(forget.left - 4, memory.center_y, memory.left, along="x")
    drawing.arrow(memory.right, memory.center_y, memory.right + 50, along="x")
    drawing.text(memory.right + 54, memory.center_y + 4, "cₜ", anchor="start")
    output = drawing.box(0, memory.top - 30, "New state\nhₜ = o ∘ tanh(cₜ)", "state", width=170)
    drawing.arrow(0, memory.top, output.bottom)
    drawing.arrow(emit.center_x, emit.top, output.center_y, output.right)
    return output
