"""Recurrent layers whose steps are one call of PyTorch's own implementation (cuDNN, oneDNN)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headway.nn.recurrent import LayerState, RecurrentLayer


class FusedRecurrentLayer(RecurrentLayer):
    """:class:`~headway.nn.recurrent.RecurrentLayer` by one call of ``nn.GRU`` or ``nn.LSTM``."""

    def forward(self, x: Float[Tensor, "R T _"], state: LayerState) -> tuple[Float[Tensor, "R T D"], LayerState]:
        """Return h after each step, and the state after the last."""
        if self.num_states == 2 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # oneDNN has no LSTM in bfloat16 for most processors, and raises. The steps multiply in bfloat16, but keep
            # their states in float32.
            return super().forward(x, state)
        first = tuple(part.unsqueeze(0).to(x.dtype).contiguous() for part in state)  # as cuDNN expects them
        outputs, last = self.cell(x, first if self.num_states == 2 else first[0])
        return outputs, tuple(part.squeeze(0) for part in (last if self.num_states == 2 else (last,)))
