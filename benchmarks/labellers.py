"""Text classifiers that Headway is compared with: a small implementation of fastText, and scikit-learn's classifiers.

**fastText** (Joulin et al., "Bag of Tricks for Efficient Text Classification", 2017): a text is the mean of the vectors
of its words and word pairs, followed by a linear layer and a softmax. Word pairs share a table of fixed size, indexed
by a hash. Words are in lower case and punctuation is separated, as the authors prepare AG News. Also from the paper are
10 dimensions, 5 epochs, a learning rate of 0.25 that falls linearly to zero, plain stochastic gradient descent and the
initialization (uniform within 1/dimensions; zeros). Departures: a step sums the gradients of 16 texts, while fastText
updates after each text, in threads without locks; and the table has 2^20 entries, not 10 million. The original is
written in C++, so its speed differs.

**TF-IDF** with logistic regression or a linear support vector machine: words and word pairs, counts as 1 + log, and
scikit-learn's defaults except for C (0.5 for the support vector machine, 10 for the regression).
"""

import re
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FastText", "MissingError", "train_fasttext", "train_tfidf"]

Classify = Callable[[list[str]], list[str]]
DIMENSIONS, EPOCHS, LEARNING_RATE, TEXTS_A_STEP, BUCKETS = 10, 5, 0.25, 16, 1 << 20
_WORD = re.compile(r"\w+|[^\w\s]")


class MissingError(RuntimeError):
    """The package of a baseline is not installed."""


class FastText(nn.Module):
    """The mean of the vectors of words and hashed word pairs, followed by a linear layer.

    Unknown words are skipped. Row 0 of the table, which is zero, represents a text without known words.
    """

    def __init__(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        super().__init__()
        self.words = {word: row for row, word in enumerate(sorted({w for text in texts for w in words(text)}), start=1)}
        self.labels = sorted(set(labels))
        self.table = nn.EmbeddingBag(1 + len(self.words) + BUCKETS, DIMENSIONS, mode="mean", sparse=True)
        self.output = nn.Linear(DIMENSIONS, len(self.labels))
        nn.init.uniform_(self.table.weight, -1 / DIMENSIONS, 1 / DIMENSIONS)
        with torch.no_grad():
            self.table.weight[0] = 0
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def features(self, text: str) -> list[int]:
        """Return the rows of the table whose mean represents a text."""
        found = words(text)
        single = [self.words[word] for word in found if word in self.words] or [0]
        first_bucket = 1 + len(self.words)
        return single + [
            first_bucket + zlib.crc32(f"{left} {right}".encode()) % BUCKETS for left, right in pairwise(found)
        ]

    def forward(self, features: Sequence[list[int]]) -> Tensor:
        """Return the logits of texts, each given as its rows of the table."""
        starts = np.cumsum([0] + [len(rows) for rows in features[:-1]])
        flat = np.fromiter((row for rows in features for row in rows), np.int64)
        logits: Tensor = self.output(self.table(torch.from_numpy(flat), torch.from_numpy(starts)))
        return logits

    @torch.inference_mode()
    def classify(self, texts: list[str]) -> list[str]:
        """Return the label of each text."""
        found = self([self.features(text) for text in texts]).argmax(1).tolist()
        return [self.labels[number] for number in found]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, with each punctuation mark as a separate word."""
    return _WORD.findall(text.lower())


def train_fasttext(texts: list[str], labels: list[str], seed: int = 1) -> Classify:
    """Train fastText's model as described in the module's docstring."""
    torch.manual_seed(seed)
    model = FastText(texts, labels)
    features = [model.features(text) for text in texts]
    numbers = {label: number for number, label in enumerate(model.labels)}
    targets = torch.tensor([numbers[label] for label in labels])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    rng = np.random.default_rng(seed)
    rows = [row for _ in range(EPOCHS) for row in np.array_split(rng.permutation(len(texts)), _steps(len(texts)))]
    for step, chosen in enumerate(rows):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / len(rows))
        loss = F.cross_entropy(model([features[row] for row in chosen]), targets[chosen], reduction="sum")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.classify


def _steps(texts: int) -> int:
    return -(-texts // TEXTS_A_STEP)


def train_tfidf(kind: Literal["regression", "machine"], texts: list[str], labels: list[str]) -> Classify:
    """Fit a pipeline of scikit-learn.

    Raises:
        MissingError: scikit-learn is not installed.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.svm import LinearSVC
    except ImportError:
        raise MissingError("not installed: pip install scikit-learn") from None
    last = LogisticRegression(C=10, max_iter=1_000) if kind == "regression" else LinearSVC(C=0.5)
    pipeline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), last).fit(texts, labels)

    def classify(texts: list[str]) -> list[str]:
        return [str(label) for label in pipeline.predict(texts)]

    return classify
