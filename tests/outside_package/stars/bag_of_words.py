"""An architecture: the logits are a linear function of the mean of a text's embeddings."""

from typing import Literal

from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from headway.models.base import ArchitectureConfig, ClassificationModel
from headway.nn.pooling import Pooling


class BagOfWordsConfig(ArchitectureConfig):
    """The options of a bag of words."""

    kind: Literal["bag_of_words"] = Field("bag_of_words", description="The architecture.")
    d_model: int = Field(16, ge=1, description="Width of the embeddings.")
    max_length: int = Field(32, ge=2, description="Maximum text length in tokens.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability on the mean.")

    @property
    def masked(self) -> bool:
        return True

    @property
    def pad_to_max_length(self) -> bool:
        return False

    @property
    def pooling(self) -> str:
        return "mean"


class BagOfWords(ClassificationModel):
    config: BagOfWordsConfig

    def __init__(self, config: BagOfWordsConfig, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.pooling = Pooling("mean", config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Linear(config.d_model, num_classes)

    @property
    def max_length(self) -> int:
        return self.config.max_length

    def encoder_tokens(self, source: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
        return source

    def embed_source(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        embedded: Tensor = self.embedding(source)
        return embedded

    def logits_from(self, embedded: Float[Tensor, "B S D"], source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        logits: Tensor = self.projection(self.dropout(self.pooling(embedded, source != 0)))
        return logits

    def forward(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        return self.logits_from(self.embed_source(source), source)
