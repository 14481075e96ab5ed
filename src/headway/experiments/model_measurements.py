"""What is measured with a trained model of the pool, besides its loss and its translations of the test set.

:data:`MEASUREMENTS` maps names to functions. Most return sums over :data:`BLOCKS` blocks of test sentences, so that a
record stays small, and verdicts can resample blocks. Everything here needs weights; what follows from records alone is
in :mod:`statistics_of_runs`. Log-probabilities are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headway.bundle import Bundle, ClassifierBundle
from headway.data.labels import read_labeled_texts
from headway.data.readers import Corpus
from headway.decode import DecodingOptions
from headway.errors import ConfigError
from headway.evaluation.translation import find_metric
from headway.experiments.corpus import AG_NEWS
from headway.inspection.capture import Kind, attention_modules
from headway.inspection.inspect_translator import inspect_translation
from headway.models.registry import architecture_of
from headway.nn.attention import MultiHeadAttention, observe_attention
from headway.nn.embedding import pad_sequences
from headway.predict import Classifier, Translator, load_translator
from headway.predict.translation.alignment import attention_maps
from headway.text.base import BOS, EOS, PAD
from headway.text.lexicon import align_tokens

TEST = "test_2016_flickr"
BLOCKS = 50
BEAMS = ((1, 0.6), (2, 0.6), (8, 0.6), *((beam, penalty) for beam in (4, 16) for penalty in (0.0, 0.6, 1.0)))
"""Beam sizes and length penalties."""

BEAM_SIZES = (1, 2, 4, 8, 16)  # with a length penalty of 0.6
SEARCHED = "Zwei Personen vergnügen sich auf ihrem Boot."  # the search for its translation is drawn
QUERIES: tuple[tuple[int, Kind, str], ...] = (
    (604, "encoder", "sieht"),
    (604, "encoder", "ihrer"),
    (543, "cross", "hit"),
)
"""Queries whose attention is drawn: index of the test pair, kind of attention (the last layer), and token."""

SENTENCES_BEFORE = (0, 1, 3, 7)
_EVERY = 4  # of the test sentences, one is read after others
_ROWS = 100  # sentences that are read at a time
_TRAINING_PAIRS = 1000  # pairs whose loss shows how well a model knows its training text
_DIGITS = 3

EncodedPair = tuple[list[int], list[int]]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainedModel:
    """A trained model and its corpus.

    Attributes:
        folder: The run folder, with the last weights in ``last`` and averages beside it.
        corpus: The folder of the corpus.
    """

    folder: Path
    corpus: Path

    @cached_property
    def bundle(self) -> Bundle:
        """The last weights, in plain PyTorch."""
        bundle = Bundle.load(self.folder / "last")
        bundle.model.eval()
        return bundle

    @cached_property
    def test(self) -> list[EncodedPair]:
        """The tokens of the test set."""
        return self.encode(read_pairs(self.corpus, TEST))

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """Return the tokens of pairs, with the special tokens of both sides."""
        special = self.bundle.token_template.fill()
        tokenizers = self.bundle.source_tokenizer, self.bundle.target_tokenizer
        texts = zip(tokenizers, zip(*pairs, strict=True), strict=True)
        sources, targets = (tokenizer.encode_batch(list(side)) for tokenizer, side in texts)
        return [
            (special.add_to_source(source), [*special.target_prefix, *target, EOS])
            for source, target in zip(sources, targets, strict=True)
        ]

    def without_end_tokens(self, pairs: Sequence[EncodedPair]) -> list[EncodedPair]:
        """Return pairs without the special tokens at their ends."""
        ends = len(self.bundle.token_template.fill().source_suffix)
        return [(source[: len(source) - ends], target[:-1]) for source, target in pairs]

    def translator(self, weights: str = "last", precision: Any = "float32") -> Translator:
        """Return a translator with some of the weights."""
        return load_translator(self.folder / weights, device="cpu", precision=precision, avoid_flagged=False)


def read_pairs(corpus: Path, name: str, most: int | None = None) -> list[tuple[str, str]]:
    """Return the sentence pairs of a part of Multi30k, such as "val"; at most the first ``most``."""
    sides = [(corpus / f"{name}.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en")]
    return list(islice(zip(*sides, strict=True), most))


def in_blocks(values: ArrayLike) -> list[Any]:
    """Return the sums of values (sentences x ...) over blocks of neighboring sentences."""
    array = np.asarray(values)
    whole = array.astype(np.int64) if (array == np.round(array)).all() else array  # shorter in a record
    return [np.round(part.sum(0), _DIGITS).tolist() for part in np.array_split(whole, BLOCKS)]


def bleu_counts(translations: Sequence[str], references: Sequence[str]) -> Array:
    """Return the counts of each sentence from which BLEU is computed."""
    return np.asarray(find_metric("bleu").counts(translations, references), dtype=np.float64)


@torch.inference_mode()
def read_targets(model: nn.Module, pairs: Sequence[EncodedPair]) -> Array:
    """Return log P(target | source) and the number of tokens that were the most probable ones (2 x pairs)."""
    results = np.zeros((2, len(pairs)))
    order = sorted(range(len(pairs)), key=lambda number: len(pairs[number][1]))
    for start in range(0, len(order), _ROWS):
        rows = order[start : start + _ROWS]
        source, target = (
            pad_sequences([pairs[row][side] for row in rows], PAD, torch.device("cpu")) for side in (0, 1)
        )
        log_probs = model(source, F.pad(target[:, :-1], (1, 0), value=BOS)).float().log_softmax(-1)
        real = target != PAD
        results[0, rows] = (log_probs.gather(2, target.unsqueeze(2)).squeeze(2) * real).sum(1)
        results[1, rows] = ((log_probs.argmax(2) == target) & real).sum(1)
    return results


def measure_fit(trained: TrainedModel) -> dict[str, Any]:
    """Return how many tokens of the references are the most probable ones, and the loss of training pairs."""
    training = trained.encode(read_pairs(trained.corpus, "train", _TRAINING_PAIRS))
    loss = -read_targets(trained.bundle.model, training)[0].sum() / sum(len(target) for _, target in training)
    return {"correct": in_blocks(read_targets(trained.bundle.model, trained.test)[1]), "training_loss": float(loss)}


def measure_heads(trained: TrainedModel) -> dict[str, Any]:
    """Return the log-probability of the references without each head in turn."""
    model = trained.bundle.model
    kinds, without = list[str](), list[Any]()
    for _, kind, layer in attention_modules(model):
        for head in range(layer.num_heads if isinstance(layer, MultiHeadAttention) else 0):
            kinds.append(str(kind))
            with removed_head(layer, head):
                without.append(in_blocks(read_targets(model, trained.test)[0]))
    return {"kinds": kinds, "whole": in_blocks(read_targets(model, trained.test)[0]), "without": without}


@contextmanager
def removed_head(attention: nn.Module, head: int) -> Iterator[None]:
    """Set the weights of ``head`` to zero inside the context, so that it contributes nothing."""

    def remove(module: nn.Module, weights: Tensor) -> Tensor | None:
        if module is not attention:
            return None
        kept = weights.clone()
        kept[:, head] = 0
        return kept

    with observe_attention(remove):
        yield


def align_test_pairs(trained: TrainedModel) -> list[dict[int, int]]:
    """Return the aligner's links of each test pair: the source position of each linked target position."""
    texts = trained.without_end_tokens(trained.test + trained.encode(read_pairs(trained.corpus, "train")))
    return align_tokens(texts, len(trained.test), trained.bundle.target_tokenizer.vocab_size)


def measure_alignment(trained: TrainedModel) -> list[Any]:
    """Return, in blocks: links of the aligner, those on the diagonal, and those that each decoder layer finds.

    The aligner is IBM model 1 in both directions, learned from training and test text: a source and a target token are
    linked if each is the other's best match. A layer links a target token to the source token with the largest weight,
    averaged over its heads, in the step that predicts the target token.
    """
    model, links = trained.bundle.model, align_test_pairs(trained)
    test = trained.without_end_tokens(trained.test)
    counts = np.zeros((len(test), 2 + len(architecture_of(model.config).get_cross_attentions(model))))
    for number, ((source, target), linked) in enumerate(zip(test, links, strict=True)):
        slope = (len(source) - 1) / max(len(target) - 1, 1)
        counts[number, :2] = len(linked), sum(source_at == round(slope * at) for at, source_at in linked.items())
    for layer in range(counts.shape[1] - 2):
        for start in range(0, len(test), _ROWS):
            rows = range(start, min(start + _ROWS, len(test)))
            sources, targets = [trained.test[row][0] for row in rows], [test[row][1] for row in rows]
            for row, weights in zip(rows, attention_maps(model, sources, targets, layer=layer), strict=True):
                best = weights[:, : len(test[row][0])].argmax(1).tolist()
                counts[row, 2 + layer] = sum(best[at] == source_at for at, source_at in links[row].items())
    return in_blocks(counts)


def _translate(trained: TrainedModel, translator: Translator, beam: int = 4, penalty: float = 0.6) -> list[Any]:
    """Translate the test set, and return the counts of BLEU in blocks."""
    sources, references = (list(side) for side in zip(*read_pairs(trained.corpus, TEST), strict=True))
    results = translator.translate(sources, DecodingOptions(beam_size=beam, length_penalty=penalty))
    return in_blocks(bleu_counts([result.text for result in results], references))


def measure_beams(trained: TrainedModel) -> list[Any]:
    """Return, for each of :data:`BEAMS`, the counts of BLEU."""
    translator = trained.translator()
    return [_translate(trained, translator, *setting) for setting in BEAMS]


def measure_int8(trained: TrainedModel) -> dict[str, Any] | None:
    """Return the counts of BLEU of the search in 8-bit integers (beam 4), or None if the model has no such search."""
    try:
        translator = trained.translator(precision="int8")
    except ConfigError:
        return None
    return {"counts": _translate(trained, translator)}


def measure_averages(trained: TrainedModel) -> dict[str, Any]:
    """Return, for averages of the weights, log-probabilities of the references and the counts of BLEU (beam 4)."""
    return {
        name: {
            "log_probs": in_blocks(read_targets(Bundle.load(trained.folder / name).model.eval(), trained.test)[0]),
            "counts": _translate(trained, trained.translator(name)),
        }
        for name in ("average", "ema")
        if (trained.folder / name).is_dir()
    }


def measure_length(trained: TrainedModel) -> list[Any]:
    """Return, in blocks: tokens of sentences, and their log-probability after each of :data:`SENTENCES_BEFORE`.

    Source and target begin with as many other sentences, so the model reads texts that are longer than in training,
    and its target is given: it need not know when to stop.
    """
    pairs, translator = read_pairs(trained.corpus, TEST), trained.translator()
    last = range(max(SENTENCES_BEFORE), len(pairs), _EVERY)
    scored = list[list[list[float]]]()  # log-probabilities of the tokens
    for before in SENTENCES_BEFORE:
        texts = [[" ".join(side) for side in zip(*pairs[at - before : at + 1], strict=True)] for at in last]
        results = translator.score(*(list(side) for side in zip(*texts, strict=True)))
        scored.append([list(result.token_log_probabilities) for result in results])
    lengths = [len(tokens) for tokens in scored[0]]
    columns = [[sum(tokens[-n:]) for tokens, n in zip(of_texts, lengths, strict=True)] for of_texts in scored]
    return in_blocks(np.array([lengths, *columns]).T)


@torch.inference_mode()
def measure_tokens(trained: TrainedModel) -> list[Any]:
    """Return, in blocks: source tokens of the test set, and how many of them each encoder layer identifies.

    Layer 0 is the first block's input. A vector identifies its token if the mean vector of this token, over the
    development set, is the nearest of all mean vectors. Tokens that the development set lacks are left out.
    """
    known = [source for source, _ in trained.encode(read_pairs(trained.corpus, "val"))]
    test = [source for source, _ in trained.test]
    ids = torch.tensor([token for source in known for token in source])
    tokens, numbers, counts = torch.unique(ids, return_inverse=True, return_counts=True)
    read = torch.tensor([token for source in test for token in source])
    seen = torch.isin(read, tokens)
    columns = [seen]
    for old, new in zip(_encoder_vectors(trained, known), _encoder_vectors(trained, test), strict=True):
        means = torch.zeros(len(tokens), old.size(1)).index_add_(0, numbers, old) / counts.unsqueeze(1)
        nearest = torch.cat([torch.cdist(part, means).argmin(1) for part in torch.split(new, 1000)])
        columns.append(seen & (tokens[nearest] == read))
    of_sentence = np.repeat(np.arange(len(test)), [len(source) for source in test])
    return in_blocks(np.array([np.bincount(of_sentence, column.numpy(), len(test)) for column in columns]).T)


def measure_examples(trained: TrainedModel) -> dict[str, Any]:
    """Return examples to draw: the tree of a search, and the attention of each of :data:`QUERIES`.

    For queries of the decoder, the source token that the aligner links to them is included. "log_probs" are the
    log-probabilities, in blocks, of the translations of the test set that beams of :data:`BEAM_SIZES` find.
    """
    translator, pairs = trained.translator(), read_pairs(trained.corpus, TEST)
    queries = list[dict[str, Any]]()
    for number, kind, word in QUERIES:
        shown = (inspection := inspect_translation(translator, *pairs[number])).select_map(kind)
        row = [token.strip() for token in inspection.tokens(shown.row_side)].index(word)
        weights = np.round(shown.weights[:, row].numpy().astype(float), _DIGITS).tolist()
        linked = align_test_pairs(trained)[number].get(row) if kind == "cross" else None
        query = {"word": word, "kind": kind, "layer": shown.layer, "row": row, "linked": linked, "weights": weights}
        queries.append(query | {"tokens": inspection.source_tokens, "pair": pairs[number]})
    log_probs = [
        [
            result.candidates[0].log_probability
            for result in translator.translate([source for source, _ in pairs], options)
        ]
        for options in (DecodingOptions(beam_size=beam, length_penalty=0.6) for beam in BEAM_SIZES)
    ]
    tree = asdict(translator.search_tree(SEARCHED, DecodingOptions(beam_size=4, length_penalty=0.6)))
    return {"searched": SEARCHED, "tree": tree, "queries": queries, "log_probs": in_blocks(np.array(log_probs).T)}


def _encoder_vectors(trained: TrainedModel, sources: Sequence[list[int]]) -> list[Tensor]:
    """Return the vectors of all source tokens, one after another, before the first encoder block and after each."""
    model: Any = trained.bundle.model
    layers: list[list[Tensor]] = [[] for _ in range(1 + len(model.encoder.blocks))]
    for source in sources:
        x = model.embed_source(torch.tensor([source]))
        layers[0].append(x[0])
        for vectors, block in zip(layers[1:], model.encoder.blocks, strict=True):
            x = block(x)
            vectors.append(x[0])
    return [torch.cat(vectors) for vectors in layers]


def measure_labels(trained: TrainedModel) -> dict[str, list[float]]:
    """Return for each test text: whether the label is right, the right label's probability, and the largest one."""
    labels = list(read_labeled_texts(Corpus(files=(Path(AG_NEWS[1]).name,)), trained.corpus))
    classifier = Classifier(ClassifierBundle.load(trained.folder / "last"), device="cpu")
    found = classifier.classify([text for text, _ in labels])
    pairs = [(result, label) for result, (_, label) in zip(found, labels, strict=True)]
    return {
        "right": [int(result.label == label) for result, label in pairs],
        "probability": [round(result.probabilities[label], _DIGITS) for result, label in pairs],
        "confidence": [round(result.probability, _DIGITS) for result in found],
    }


MEASUREMENTS: dict[str, Callable[[TrainedModel], Any]] = {
    "fit": measure_fit,
    "heads": measure_heads,
    "alignment": measure_alignment,
    "beams": measure_beams,
    "int8": measure_int8,
    "average": measure_averages,
    "length": measure_length,
    "tokens": measure_tokens,
    "labels": measure_labels,
}
"""What can be measured, by name."""
