"""Parts that are defined in a notebook's cell: a score function, a model, and a task with a loss of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

import headway
from headway import tasks
from headway.bundle import BUNDLE_TYPES
from headway.errors import BundleError, ConfigError
from headway.models import registry
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import ScoreFunction, register_score
from headway.nn.scores import SCORES
from headway.tasks.translation import TranslationObjective, TranslationTask
from headway.training.stream import TokenBatch

PAIRS = [("eins zwei", "two one"), ("zwei drei", "three two"), ("drei eins", "one three")] * 4
losses = list[float]()


class Distance(ScoreFunction):
    """The negative squared distance of query and key, with a learned scale."""

    def __init__(self, width: int, num_heads: int, _hidden: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((num_heads, 1, 1), width**-0.5))

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        return -self.scale * torch.cdist(query, keys).square()


class GatedConfig(TransformerConfig):
    kind: Literal["gated_source"] = Field("gated_source", description="The architecture.")  # type: ignore[assignment]


class GatedTransformer(Transformer):
    """A Transformer that scales each unit of what its encoder returns."""

    config: GatedConfig

    def __init__(self, config: GatedConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size)
        self.gate = torch.nn.Parameter(torch.zeros(config.d_model))

    def encode(self, source: Any, source_mask: Any) -> Any:
        return super().encode(source, source_mask) * (2 * self.gate.sigmoid())


class FocalObjective(TranslationObjective):
    """The focal loss (Lin et al. 2017): targets that are predicted well count less."""

    def loss_of(self, states: Float[Tensor, "B T D"], batch: TokenBatch, smoothing: float) -> Float[Tensor, ""]:
        logits = self.model.projection(self.outputs(states, batch))
        log_probs = F.log_softmax(logits, -1).gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        loss: Tensor = -((1 - log_probs.exp()).square() * log_probs).sum()
        losses.append(float(loss.detach()))
        return loss


class FocalTask(TranslationTask):
    kind: ClassVar[str] = "focal_translation"

    def build_objective(self, model: Any, recipe: Any, prepared: Any) -> FocalObjective:
        return FocalObjective(model, 0.0)


FOCAL = FocalTask()
ARCHITECTURE = registry.Architecture(GatedConfig, GatedTransformer, "translates")


def train(folder: Path) -> headway.Run:
    return headway.train(
        task={"kind": "focal_translation", "source_language": "de", "target_language": "en"},
        tokenizer={"kind": "whitespace"},
        model={
            "kind": "gated_source",
            "score": "distance",
            "d_model": 8,
            "num_heads": 2,
            "d_ff": 8,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.0,
        },
        training={"steps": 2, "device": "cpu", "precision": "float32"},
        checkpoints={"average": 0},
        train=PAIRS,
        run=folder,
        progress=False,
    )


def test_they_train_save_and_load_where_they_are_registered(
    kinds_of_this_test: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register_score("distance", Distance)
    registry.register(ARCHITECTURE)
    tasks.register(FOCAL)
    run = train(tmp_path / "run")
    model = run.model.bundle.model
    assert losses
    assert isinstance(model, GatedTransformer)
    assert {type(layer.score) for layer in model.modules() if hasattr(layer, "score")} == {Distance}
    assert isinstance(headway.load(run.folder / "best", device="cpu").translate("eins zwei").text, str)
    built_in = Transformer(TransformerConfig(score="distance", d_model=8, num_heads=2, d_ff=8), 9, 9)
    assert "Score (distance)" in headway.diagram(built_in, level="attention").svg

    kinds_of_this_test.undo()
    with kinds_of_this_test.context() as elsewhere:
        for table, key, entry, function in (
            (BUNDLE_TYPES, "task: kind = 'focal_translation'", FOCAL.bundle_type, "headway.tasks.register"),
            (registry.ARCHITECTURES, "kind = 'gated_source'", ARCHITECTURE, "headway.models.registry.register"),
            (SCORES, "score = 'distance'", Distance, "headway.nn.register_score"),
        ):
            with pytest.raises(BundleError, match=f"{key}.*or a notebook defines it, first call {function} for it"):
                headway.load(run.folder / "best")
            kind = key.split("'")[1]
            elsewhere.setattr(table, "_entries", {**table._entries, kind: entry})
    with pytest.raises(ConfigError, match=r"task.kind = 'focal_translation'"):
        train(tmp_path / "elsewhere")


def test_a_score_function_must_have_a_name_of_its_own(kinds_of_this_test: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"model\.score = 'dot' is already registered"):
        register_score("dot", Distance)
