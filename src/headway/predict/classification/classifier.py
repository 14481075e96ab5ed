"""Classify texts: tokenize them, batch them by length, predict labels, and explain the labels by words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.bundle import ClassifierBundle
from headway.config import spelling_hint
from headway.decode import length_batches
from headway.errors import ConfigError, DataError, HeadwayError
from headway.interop.hub import model_folder
from headway.notebook_html import join_fragments, table
from headway.predict.classification.attribution import Explanation, explain_label
from headway.predict.presentation import ModelWrapper
from headway.predict.results import process_lines, raise_first_error
from headway.predict.shared_weights import with_model_copy
from headway.text.base import EOS, PAD, check_no_surrogates
from headway.text.corpus_encoder import CorpusEncoder, PackedIds
from headway.text.normalization import normalize

_LINES_AHEAD = 2048  # number of lines of a stream to read at a time, so that they can be batched by length


@dataclass(frozen=True)
class Classification:
    """The most probable label of a text.

    Attributes:
        label: The name of the label.
        probability: Probability of the label.
        probabilities: Probability of each label.
        truncated: Whether the text was too long for the model, so that only its beginning was classified.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    truncated: bool

    def __repr__(self) -> str:
        cut = ", truncated" if self.truncated else ""
        return f"<Classification: {self.label!r}, probability {self.probability:.3f}{cut}>"

    def _repr_html_(self) -> str:
        ranked = sorted(self.probabilities.items(), key=lambda pair: -pair[1])
        rows = [(label, f"{probability:.3f}") for label, probability in ranked]
        return join_fragments(table(("label", "probability"), rows, numbers=(1,)))


class Classifier(ModelWrapper):
    """A trained classifier with its tokenizer. Several threads may call it at the same time.

    A text that is empty or only white space is an error. If a text is too long for the model, only its beginning is
    classified, and the result is marked ``truncated``.

    The given model does not change. The classifier uses a copy, which shares the weights unless it is on another
    device.

    Args:
        bundle: The trained classifier with its tokenizer.
        device: Device to run on: "auto" (a GPU if there is one), "cpu", "cuda" or another PyTorch device. None means
            the model's current device.
        max_batch_tokens: Maximum size of a batch: number of texts x tokens of the longest text.
    """

    bundle: ClassifierBundle

    def __init__(
        self,
        bundle: ClassifierBundle,
        *,
        device: str | torch.device | None = None,
        max_batch_tokens: int = 4096,
    ) -> None:
        from headway.engine.accelerate import accelerate  # imported here: translators do not need it

        self.bundle = bundle = with_model_copy(bundle, device)
        self.device = accelerate(bundle.model).projection.weight.device
        self.max_batch_tokens = max_batch_tokens
        self._encoder = CorpusEncoder(bundle.tokenizer)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the model's logits."""
        return self.bundle.labels

    def warm_up(self) -> None:
        """Classify a short text, so that the model's kernels are compiled."""
        self.classify_each(["a"])

    @overload
    def classify(self, text: str) -> Classification: ...  # type: ignore[overload-overlap]  # a str is a Sequence[str]
    @overload
    def classify(self, text: Sequence[str]) -> list[Classification]: ...
    def classify(self, text: str | Sequence[str]) -> Classification | list[Classification]:
        """Classify one text or a list of texts.

        Raises:
            DataError: A text is empty or not valid Unicode. For a list, the message contains the text's number, counted
                from 1.
        """
        if isinstance(text, str):
            return raise_first_error(self.classify_each([text]), None, 1)[0]
        return raise_first_error(self.classify_each(text), "text", 1)

    def classify_lines(self, lines: Iterable[str]) -> Iterator[Classification]:
        """Classify a stream in order, reading ahead to batch texts of similar length.

        Memory use does not grow with the number of lines.

        Raises:
            DataError: A line is empty or not valid Unicode. The message contains the line number.
        """
        return process_lines(lines, _LINES_AHEAD, self.classify_each)

    def classify_each(self, texts: Sequence[str]) -> list[Classification | HeadwayError]:
        """Classify a list of texts. A text that cannot be classified is represented by its error."""
        texts = list(map(self.bundle.normalized, texts))
        problems = [_problem(text) for text in texts]
        packed = self._encoder.encode([text for text, problem in zip(texts, problems, strict=True) if problem is None])
        truncated = packed.lengths >= self.bundle.model.max_length  # the maximum includes EOS
        outcomes = zip(self._probabilities(packed).tolist(), truncated.tolist(), strict=True)
        return [self._classification(*next(outcomes)) if problem is None else problem for problem in problems]

    def explain(self, text: str, label: str | None = None) -> Explanation:
        """Return how much each token and word of ``text`` contributes to ``label``, by default the most probable label.

        Raises:
            ConfigError: The label does not exist.
            DataError: The text is empty or not valid Unicode.
        """
        classification = self.classify(text)
        chosen = self.resolve_label(label) or classification.label
        ids = self._batch(self._encoder.encode([self.bundle.normalized(text)]), np.arange(1))
        return explain_label(self.bundle, ids, chosen, classification.probabilities[chosen])

    def resolve_label(self, label: str | None) -> str | None:
        """Return a label in the model's spelling. None is returned unchanged.

        Raises:
            ConfigError: The model has no such label.
        """
        if label is None or label in self.labels:
            return label
        by_form = {normalize(known): known for known in self.labels}
        if (form := normalize(label)) not in by_form:
            raise ConfigError(f"unknown label {label!r}; {spelling_hint(label, self.labels)}")
        return by_form[form]

    def _classification(self, probabilities: list[float], truncated: bool) -> Classification:
        by_label = dict(zip(self.labels, probabilities, strict=True))
        best = max(by_label, key=by_label.__getitem__)
        return Classification(best, by_label[best], by_label, truncated)

    @torch.inference_mode()
    def _probabilities(self, packed: PackedIds) -> NDArray[np.float32]:
        """Return the probabilities (N, C) of all labels, computed in batches of similar length."""
        model, limit = self.bundle.model, self.max_batch_tokens
        # Some models pad every text to their maximum length.
        shortest = model.max_length if model.config.pad_to_max_length else 0
        lengths = np.clip(packed.lengths + 1, shortest, model.max_length).tolist()
        probabilities = np.empty((len(lengths), len(self.labels)), np.float32)
        for batch in length_batches([range(length) for length in lengths], limit, limit):
            rows = np.array(batch)
            probabilities[rows] = model(self._batch(packed, rows)).float().softmax(1).cpu().numpy()
        return probabilities

    def _batch(self, packed: PackedIds, rows: NDArray[np.int64]) -> Tensor:
        """Return the ids (B, S) of the texts ``rows``, truncated to the model's length, with EOS and padding."""
        lengths = np.minimum(packed.lengths[rows], self.bundle.model.max_length - 1)
        starts = (np.cumsum(packed.lengths) - packed.lengths)[rows]
        columns = np.arange(lengths.max() + 1)
        inside = columns < lengths[:, None]
        ids = np.full(inside.shape, PAD, np.int64)
        ids[inside] = packed.ids[(starts[:, None] + columns)[inside]]
        ids[np.arange(len(rows)), lengths] = EOS
        return torch.from_numpy(ids).to(self.device)


def load_classifier(folder: str | Path, *, device: str | torch.device | None = "auto", **settings: Any) -> Classifier:
    """Load the classifier in ``folder``. For the other arguments, see :class:`Classifier`.

    Raises:
        ConfigError: The machine does not have the device.
        BundleError: ``folder`` is not the model folder of a classifier, or a file in it is missing or invalid.
    """
    return Classifier(ClassifierBundle.load(model_folder(folder)), device=device, **settings)


def _problem(text: str) -> DataError | None:
    """Return an error if a text cannot be classified, or None."""
    if not text.strip():
        return DataError("the text is empty; expected at least one character that is not white space")
    try:
        check_no_surrogates(text, 1)
    except DataError as error:
        return DataError(str(error).removeprefix("text 1, "))
    return None
