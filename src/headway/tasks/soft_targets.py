"""Distillation with soft targets: the predictions of a larger language model, the teacher (Hinton et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.bundle import LanguageModelBundle, read_config, require_float_weights
from headway.engine.accelerate import accelerate
from headway.engine.loss import projected_distillation_loss
from headway.errors import ConfigError
from headway.models.base import ContinuationModel
from headway.models.decoder_only import DecoderOnlyConfig
from headway.tasks.text_blocks import TextDataConfig, can_reset_positions
from headway.text.base import TextTokenizer
from headway.training.stream import TokenBatch


class SoftTargets:
    """Computes the divergence from a teacher's predictions (Hinton et al. 2015, "Distilling the Knowledge").

    Args:
        folder: The teacher's model folder. The teacher is loaded when it is first used. It processes the same blocks as
            the student, but always starts from BOS.
        weight: Weight of the divergence from the teacher.
        temperature: Divisor of both models' logits.
    """

    def __init__(self, folder: Path, weight: float, temperature: float) -> None:
        self.weight, self._temperature = weight, temperature
        self._folder = folder

    def loss(
        self,
        hidden: Float[Tensor, "N D"],
        projection: nn.Module,
        batch: TokenBatch,
        run_model: Callable[[ContinuationModel, Tensor], Tensor],
    ) -> Float[Tensor, ""]:
        """Return the divergence of the student's predictions from the teacher's, summed over the batch's tokens.

        ``run_model`` returns the hidden states of a model for input tokens. ``hidden`` contains the student's states.
        """
        teacher = self._teacher.to(hidden.device)
        with torch.no_grad():
            states = run_model(teacher, batch.decoder_input).flatten(0, 1).index_select(0, batch.target_positions)
        return projected_distillation_loss(hidden, projection, states, teacher.projection, self._temperature)

    @cached_property
    def _teacher(self) -> ContinuationModel:
        return accelerate(LanguageModelBundle.load(self._folder).model.eval().requires_grad_(False))


def check_teacher(folder: Path, tokenizer: TextTokenizer, block_length: int, data: TextDataConfig) -> None:
    """Raise ConfigError if the teacher is not a language model or does not match the tokenizer, blocks or options."""
    config = read_config(folder)
    if config.capability != "continues":
        raise ConfigError(f"training.teacher = {str(folder)!r}: not a language model")
    require_float_weights(folder, "training.teacher")
    if config.load_tokenizers()[0].fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: its tokenizer differs from this run's tokenizer; start over with "
            "--fresh"
        )
    model = config.model
    if data.attend_within_documents and not isinstance(model, DecoderOnlyConfig):
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: a {model.kind} model cannot separate the documents of a block; set "
            "data.attend_within_documents to false"
        )
    if data.reset_positions and isinstance(model, DecoderOnlyConfig) and not can_reset_positions(model):
        raise ConfigError(
            f"training.teacher = {str(folder)!r}: the positions of a model with score = {model.score!r} and rotary "
            "positions cannot be reset; set data.reset_positions to false"
        )
    if isinstance(model, DecoderOnlyConfig) and model.positions == "learned" and model.max_length < block_length:
        raise ConfigError(
            f"model.max_length = {block_length}: the teacher has only {model.max_length} positions; set a smaller value"
        )
