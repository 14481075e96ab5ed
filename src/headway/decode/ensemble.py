"""Ensembles: several models searched as one model, whose probabilities are averaged at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.protocol import ExplainsNaN, SearchModel, Step
from headway.errors import ConfigError


class Ensemble:
    """A search model whose probabilities are the arithmetic mean of its members' probabilities, with equal weights.

    The members must be on the same device and must map the same token ids to the same tokens. If the vocabularies
    differ in size, the first step raises :class:`ConfigError`. The state of an ensemble is the list of its members'
    states.
    """

    def __init__(self, models: Sequence[SearchModel[Any]]) -> None:
        if not models:
            raise ConfigError("an ensemble needs at least one model")
        self.models = list(models)
        self.batch_per_thread = all(getattr(model, "batch_per_thread", False) for model in models)

    @property
    def device(self) -> torch.device:
        """The device that all members are on."""
        return self.models[0].device

    @property
    def max_length(self) -> int | None:
        """Maximum length of sources and targets for all members, including EOS. None means no limit."""
        return min((model.max_length for model in self.models if model.max_length is not None), default=None)

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> list[Any]:
        """Encode the sources and begin decoding, with ``beams`` rows per source."""
        return [model.start(sources, beams=beams) for model in self.models]

    def admit(self, state: list[Any], sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows per source."""
        for model, model_state in zip(self.models, state, strict=True):
            model.admit(model_state, sources)

    def step(self, state: list[Any], tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. Probabilities and attention are means over the members."""
        steps = [
            model.step(model_state, tokens, attention=attention)
            for model, model_state in zip(self.models, state, strict=True)
        ]
        seen = [step.attention.float() for step in steps if step.attention is not None]
        logits = _log_mean([step.logits() for step in steps])
        return Step(logits, torch.stack(seen).mean(0) if attention and len(seen) == len(steps) else None)

    def reorder_rows(
        self, state: list[Any], rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``, which belongs to the same sequence.

        Only the given ``sequences`` are kept. None keeps all.
        """
        for model, model_state in zip(self.models, state, strict=True):
            model.reorder_rows(model_state, rows, sequences)

    def explain_nan(self, state: list[Any]) -> str | None:
        """Return why predictions after ``state`` are NaN despite finite weights, or None if there is no such reason."""
        members = zip(self.models, state, strict=True)
        reasons = (model.explain_nan(model_state) for model, model_state in members if isinstance(model, ExplainsNaN))
        return next((reason for reason in reasons if reason is not None), None)

    def __call__(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the log of the members' mean probabilities after each target position, for :func:`score_targets`."""
        return _log_mean([model(source, target) for model in self.models])  # type: ignore[operator]


def _log_mean(logits: Sequence[Float[Tensor, "*b V"]]) -> Float[Tensor, "*b V"]:
    """Return the log of the models' mean probabilities, given each model's ``logits``."""
    for other in logits[1:]:
        if other.size(-1) != logits[0].size(-1):
            raise ConfigError(
                f"the models of an ensemble have vocabularies of different sizes, {logits[0].size(-1)} and "
                f"{other.size(-1)} tokens; all of them must share one vocabulary"
            )
    return torch.stack([one.float().log_softmax(-1) for one in logits]).logsumexp(0) - math.log(len(logits))
