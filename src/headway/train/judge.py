"""Scores of a model on the development set, and the model folders that a run writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from headway.bundle import Bundle, ClassifierBundle
from headway.data.batching import Corpora
from headway.evaluate import Score
from headway.hardware import autocast
from headway.models.classifier import EncoderClassifier
from headway.models.registry import Model
from headway.train.card import model_card
from headway.train.objective import batch_loss, to_device
from headway.train.prepare import Prepared
from headway.train.recipe import Recipe
from headway.train.state import Progress

__all__ = ["Judge", "Record", "Validate"]

Record = dict[str, float | str]
Validate = Callable[[Bundle | ClassifierBundle], Sequence[Score]]

_SCORES = {"bleu": "BLEU", "accuracy": "accuracy", "macro_f1": "macro F1"}  # by metric, their names


class Judge:
    """Judges ``model``, whose weights change from call to call.

    It is scored on ``device`` in ``precision``, and then put back where it was. ``validate`` uses it; where there is
    none, the loss alone tells which model is better.
    """

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared,
        model: Model,
        device: torch.device,
        precision: str,
        validate: Validate | None,
    ) -> None:
        self._recipe, self._prepared, self._model = recipe, prepared, model
        self._device, self._precision, self._validate = device, precision, validate

    def scores(self) -> Record:
        """Loss and perplexity on the development set, and what ``validate`` adds; empty without such a set."""
        if self._prepared.dev is None:
            return {}
        home = next(self._model.parameters()).device
        self._model.to(self._device).eval()
        loss = self._loss(self._prepared.dev)
        record: Record = {"loss": loss}
        if not isinstance(self._model, EncoderClassifier):
            record["perplexity"] = math.exp(min(loss, 700.0))
        for score in self._validate(self._bundle()) if self._validate else ():
            record |= {score.name: score.value, f"{score.name} signature": score.signature}
        self._model.to(home)
        return record

    def quality(self, record: Record) -> float:
        """What decides which model is better; higher is."""
        score = record.get(_SCORES.get(self._recipe.validation.metric, ""))
        return -float(record["loss"]) if score is None else float(score)

    def write(self, folder: Path, progress: Progress, scores: Record) -> None:
        """Write the model as a folder, with a card that tells ``scores`` and how it was trained."""
        card = model_card(self._recipe, progress, scores, self._prepared, self._model)
        self._bundle().save(folder, card)

    def _bundle(self) -> Bundle | ClassifierBundle:
        prepared, model = self._prepared, self._model.eval()
        if isinstance(model, EncoderClassifier):
            return ClassifierBundle(self._recipe.task, model, prepared.source_tokenizer, tuple(prepared.labels))
        return Bundle(
            self._recipe.task, model, prepared.source_tokenizer, prepared.target_tokenizer, prepared.imported_framing
        )

    @torch.inference_mode()
    def _loss(self, dev: Corpora) -> float:
        """Cross-entropy without smoothing, in nats for each target token, or text that is classified."""
        total, targets = 0.0, 0
        for rows in dev.sequential(max_tokens=self._recipe.data.max_tokens, max_examples=self._recipe.max_examples):
            batch = to_device(dev.batch(rows), self._device)
            with autocast(self._device, self._precision):
                total += float(batch_loss(self._model, batch, 0.0))
            targets += batch.targets.numel()
        return total / max(targets, 1)
