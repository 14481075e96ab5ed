"""No peeking: what a prediction may depend on (Vaswani et al. 2017, sections 3.1 and 3.2.3).

A model with random weights reads a batch. Then one target token is replaced, and every logit is compared with its old
value. In the figure, each square shows by how much the logits of one output (row) change when one target token (column)
is replaced. The output at position i is computed from the tokens up to i and predicts token i + 1, so everything above
the diagonal must be 0. This is why all positions can be trained at once: no prediction sees its answer. A model that
peeks would learn to copy the answer, and would have nothing to copy when it translates.

Then source and target are padded further, and no logit of a real position may change. Rounding differences may remain,
because matrix products of different sizes may sum in a different order.

As a control, two models that are broken on purpose are measured, one without the causal mask and one without the
padding mask: a measurement that does not detect them proves nothing. Without a causal mask, padding after the target is
visible too.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import bars, heat_map, label, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.base import BOS, EOS

VOCAB_SIZE, FIRST_WORD = 40, 4  # ids below FIRST_WORD are special tokens
BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 4, 9, 10  # batch size and lengths; TARGET_LENGTH includes BOS
LOGIT_TOLERANCE = 1e-4  # larger than rounding errors (logits are about 1), smaller than any real influence
NO_CAUSAL, NO_PADDING = "Transformer without causal mask", "Transformer without padding mask"

TITLE = "No peeking, and padding changes nothing"


class _NoCausalMask(Transformer):
    """A Transformer that is broken on purpose: every target position sees all others."""

    def decode(
        self, target: Int[Tensor, "B T"], memory: Float[Tensor, "B S D"], source_mask: Bool[Tensor, "B 1 S"]
    ) -> Float[Tensor, "B T D"]:
        everything = torch.ones(1, target.size(1), target.size(1), dtype=torch.bool)
        hidden: Tensor = self.decoder(self.embed_target(target), memory, everything, source_mask)
        return hidden


class _NoPaddingMask(Transformer):
    """A Transformer that is broken on purpose: padding is attended to like any token."""

    pad = -1


SIZES = {"d_model": 64, "num_heads": 4, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
MODELS: dict[str, tuple[type[Transformer | RecurrentModel], dict[str, str]]] = {
    "Transformer": (Transformer, {}),
    "Transformer, pre-norm, learned positions": (Transformer, {"norm": "pre", "positions": "learned"}),
    "Transformer, pre-norm, rotary positions": (Transformer, {"norm": "pre", "positions": "rotary"}),
    "Transformer, additive score": (Transformer, {"score": "additive"}),
    "GRU without attention": (RecurrentModel, {"attention": "none"}),
    "GRU with attention (Bahdanau)": (RecurrentModel, {"attention": "bahdanau"}),
    "LSTM with attention (Luong)": (RecurrentModel, {"attention": "luong", "cell": "lstm"}),
    NO_CAUSAL: (_NoCausalMask, {}),
    NO_PADDING: (_NoPaddingMask, {}),
}


def _make(name: str) -> nn.Module:
    """Return a model with weights from the current random state, in evaluation mode."""
    kind, keys = MODELS[name]
    if issubclass(kind, Transformer):
        return kind(TransformerConfig.parse({**SIZES, **keys}, name), VOCAB_SIZE, VOCAB_SIZE).eval()
    return kind(RecurrentConfig.parse({"d_model": 64, "dropout": 0.0, **keys}, name), VOCAB_SIZE, VOCAB_SIZE).eval()


@torch.inference_mode()
def measure(settings: Settings) -> Numbers:
    """Measure, for each model, the influence of every target position on every output, and of padding."""
    results: dict[str, dict[str, Any]] = {}
    for seed in settings.seeds:
        torch.manual_seed(seed)
        source, target = _batch()
        for name in MODELS:
            model = _make(name)
            influence = _influence(model, source, target)
            result = results.setdefault(name, {"influence": [], "earlier": [], "later": [], "padding": []})
            result["influence"].append(influence)
            result["earlier"].append(float(influence.triu(1).max()))  # row: output, column: replaced token
            result["later"].append(float(influence.diagonal()[1:].min()))
            padded = model(F.pad(source, (0, 3)), F.pad(target, (0, 2)))[:, :TARGET_LENGTH]
            result["padding"].append(float((padded - model(source, target)).abs().max()))
    rows = [
        {
            "model": name,
            "largest change of an earlier output": max(result["earlier"]),
            "smallest change of the output at the replaced position": min(result["later"]),
            "largest change by padding": max(result["padding"]),
        }
        for name, result in results.items()
    ]
    return {"models": results, "tables": {f"Changes of logits, over {len(settings.seeds)} seeds": rows}}


def _batch() -> tuple[Tensor, Tensor]:
    """Draw padded sources of different lengths that end in EOS, and targets that start with BOS."""
    source = torch.randint(FIRST_WORD, VOCAB_SIZE, (BATCH_SIZE, SOURCE_LENGTH))
    for row in range(BATCH_SIZE):
        source[row, SOURCE_LENGTH - 1 - row :] = torch.tensor([EOS, *[0] * row])
    target = torch.randint(FIRST_WORD, VOCAB_SIZE, (BATCH_SIZE, TARGET_LENGTH))
    target[:, 0] = BOS
    return source, target


def _influence(model: nn.Module, source: Tensor, target: Tensor) -> Float[Tensor, "T T"]:
    """Return the largest change of a logit of output t (row) when target token s (column) is replaced."""
    before = model(source, target)
    columns = []
    for place in range(TARGET_LENGTH):
        changed = target.clone()
        changed[:, place] = FIRST_WORD + (target[:, place] - FIRST_WORD + 1) % (VOCAB_SIZE - FIRST_WORD)
        columns.append((model(source, changed) - before).abs().amax(dim=(0, 2)))
    return torch.stack(columns, dim=1)


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge whether all logits of sound models stay unchanged and logits of the broken models change."""
    models, verdicts = numbers["models"], list[Verdict]()
    later = min(min(result["later"]) for result in models.values())
    for what, broken, words in (
        ("earlier", NO_CAUSAL, "a later token changes an earlier logit by"),
        ("padding", NO_PADDING, "more padding changes a logit by"),
    ):
        sound = {name: max(result[what]) for name, result in models.items() if name not in (NO_CAUSAL, NO_PADDING)}
        worst, caught = max(sound, key=sound.__getitem__), min(models[broken][what])
        reason = (
            f"{words} at most {sound[worst]:.2g} in {len(sound)} models (the largest change: {worst}), and by at least "
            f"{caught:.2g} in the control, a {broken}"
        )
        wrong, blind = sound[worst] > LOGIT_TOLERANCE, min(caught, later) < 10 * LOGIT_TOLERANCE
        if blind and not wrong:
            reason += ": the measurement would not detect errors"
        verdicts.append(decide(reason, supported=not wrong and not blind, refuted=wrong))
    return tuple(verdicts)


def draw(numbers: Numbers) -> Figure:
    """Draw the influence of target positions on outputs for a sound, a recurrent and a broken model."""
    shown = ("Transformer", "GRU with attention (Bahdanau)", NO_CAUSAL)
    picture, axes = subplots("No peeking: what does an output depend on?", 2, 2, size=(18, 12))
    grids = [torch.tensor(numbers["models"][name]["influence"]).amax(0) for name in shown]
    most = max(float(grid.max()) for grid in grids)
    ticks = [most * share for share in (0.0, 0.1, 0.4, 1.0)]
    for panel, name, grid in zip(axes, shown, grids, strict=False):
        zeros = [["0" if value <= LOGIT_TOLERANCE else "" for value in row] for row in grid.tolist()]
        style: Any = {"text_style": lambda *_: {"color": "#777777"}, "vmin": 0, "vmax": most**0.5}
        image = heat_map(panel, grid.sqrt().tolist(), zeros, **style)
        colors = picture.colorbar(image, ax=panel, label="largest change of a logit (nats)")
        colors.set_ticks([tick**0.5 for tick in ticks], labels=[f"{tick:.2g}" for tick in ticks])
        label(panel, name, "replaced target token (position)", "output (position)")
    changes = {name.removeprefix("Transformer, "): max(result["padding"]) for name, result in numbers["models"].items()}
    bars(axes[3], changes, texts="%.1g", least=1e-9)
    axes[3].axvline(LOGIT_TOLERANCE, color="#777777", linestyle=":")
    axes[3].set_xlim(1e-9, 1000)
    title = "Effect of more padding (left of the line: rounding)"
    label(axes[3], title, "largest change of a logit (nats)", "model", log="x")
    return picture
