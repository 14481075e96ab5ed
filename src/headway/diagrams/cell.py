"""The cells of recurrent layers: the equations of a GRU or an LSTM as a graph, with gates as in cuDNN."""

from __future__ import annotations

from collections.abc import Sequence

from headway.diagrams.drawing import Box, Drawing
from headway.diagrams.layers import count
from headway.nn.recurrent import RecurrentLayer

_WIDTH = 600.0  # of all gates with the space between them
_BUS_X, _BUS_H, _GATES = -34.0, -50.0, -68.0  # y of the lines that carry x and h, and of the bottom of the gates


def draw_cell(layers: Sequence[tuple[str, RecurrentLayer]], drawing: Drawing, *, shapes: bool) -> None:
    """Draw the cell that all ``layers`` have, and list the layers with their widths below it."""
    is_gru = layers[0][1].num_states == 1
    (_draw_gru if is_gru else _draw_lstm)(drawing)
    y = 10.0
    for words, layer in layers:
        weights = f", {count(layer):,} weights" if shapes else ""
        text = f"{words}: x has {layer.cell.input_size:,} units, h has {layer.cell.hidden_size:,}{weights}."
        y = drawing.paragraph(-_WIDTH / 2, y, text, _WIDTH)
        drawing.sentences.append(text)
        drawing.weights.append(count(layer))


def _gate(name: str, symbol: str, activation: str = "σ") -> tuple[str, str, str]:
    return name, f"{symbol} = {activation}(W_{symbol} xₜ", f"+ U_{symbol} hₜ₋₁ + b_{symbol})"


def _gates(drawing: Drawing, gates: Sequence[Sequence[str]]) -> list[Box]:
    """Draw the inputs, the gates, and the lines from the inputs to the gates."""
    pitch = _WIDTH / len(gates)
    centers = [pitch * (number - (len(gates) - 1) / 2) for number in range(len(gates))]
    boxes = [
        drawing.box(x, _GATES, lines, "linear" if "tanh" in lines[1] else "softmax", width=pitch - 28, height=58)
        for x, lines in zip(centers, gates, strict=True)
    ]
    for name, center, bus, offset in (
        ("xₜ  (input)", -52.0, _BUS_X, -20.0),
        ("hₜ₋₁  (state before)", 84.0, _BUS_H, 20.0),
    ):
        drawing.text(center, 0, name, anchor="middle")
        for x in centers:
            drawing.arrow((center, -14), (center, bus), (x + offset, bus), (x + offset, _GATES))
    drawing.sentences += [", ".join(lines) + "." for lines in gates]
    return boxes


def _draw_gru(drawing: Drawing) -> None:
    lines = ("Candidate", "n = tanh(W_n xₜ + b_n", "+ r ∘ (U_n hₜ₋₁ + b′_n))")
    update, reset, candidate = _gates(drawing, (_gate("Update gate", "u"), _gate("Reset gate", "r"), lines))
    drawing.arrow((reset.right, reset.middle), (candidate.x, candidate.middle))
    output = drawing.box(0, _GATES - 100, ("New state", "hₜ = u ∘ hₜ₋₁ + (1 − u) ∘ n"), "state", width=190)
    for gate, port in ((update, -60.0), (candidate, 60.0)):
        drawing.arrow((gate.center, gate.y), (gate.center, gate.y - 22), (port, gate.y - 22), (port, output.bottom))
    outer = candidate.right + 24
    drawing.arrow(
        (candidate.center + 20, _BUS_H), (outer, _BUS_H), (outer, output.middle), (output.right, output.middle)
    )
    _end(drawing, output, "hₜ  (output, and state of the next step)")


def _draw_lstm(drawing: Drawing) -> None:
    names = ("Forget gate", "f"), ("Input gate", "i"), ("Candidate", "g", "tanh"), ("Output gate", "o")
    forget, enter, candidate, emit = _gates(drawing, [_gate(*name) for name in names])
    memory = drawing.box(0, _GATES - 104, ("New cell", "cₜ = f ∘ cₜ₋₁ + i ∘ g"), "state", width=170)
    for gate, port, bend in ((forget, -60.0, 32), (enter, -20.0, 20), (candidate, 40.0, 20)):
        drawing.arrow((gate.center, gate.y), (gate.center, gate.y - bend), (port, gate.y - bend), (port, memory.bottom))
    left = forget.x - 4
    drawing.text(left, memory.middle - 6, "cₜ₋₁  (cell before)")
    drawing.arrow((left, memory.middle), (memory.x, memory.middle))
    drawing.arrow((memory.right, memory.middle), (memory.right + 50, memory.middle))
    drawing.text(memory.right + 54, memory.middle + 4, "cₜ")
    output = drawing.box(0, memory.y - 30, ("New state", "hₜ = o ∘ tanh(cₜ)"), "state", width=170)
    drawing.arrow((0, memory.y), (0, output.bottom))
    drawing.arrow((emit.center, emit.y), (emit.center, output.middle), (output.right, output.middle))
    _end(drawing, output, "hₜ  (output, and state of the next step)")


def _end(drawing: Drawing, box: Box, words: str) -> None:
    drawing.arrow((box.center, box.y), (box.center, box.y - 22))
    drawing.text(box.center, box.y - 28, words, anchor="middle")
    drawing.sentences += [", ".join(box.lines) + ".", words + "."]
