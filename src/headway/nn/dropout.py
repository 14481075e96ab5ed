"""Dropout (Srivastava et al. 2014; where the paper has it: Vaswani et al. 2017, section 5.4)."""

from __future__ import annotations

from torch import nn

from headway.errors import ConfigError

__all__ = ["Dropout"]


class Dropout(nn.Dropout):
    """Zero each element with probability ``p`` while training and scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float = 0.0) -> None:
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout = {p}: expected a probability from 0 up to, not including, 1")
        super().__init__(p)
