"""Attribution of a label to tokens: gradient x input, and the weights of attention pooling if the model uses it.

Let x_s be the encoder's input vector for token s (embedding plus position, normalized in models that normalize it), and
f the logit of the label:

    attribution of s = sum_d x_sd df/dx_sd

(Shrikumar et al. 2016; Simonyan et al. 2013 use only the gradient; Ancona et al. 2018, section 2, compare the methods).
To first order, the attribution is the amount by which the logit would fall without the token. If f is linear in x (mean
or maximum of embeddings, without encoder blocks or convolution), the attributions of all tokens sum to the logit minus
its bias. Otherwise the sum may differ, and leaving out a word may have a different effect, which
:mod:`headway.predict.classification.occlusion` measures. Attention weights show which tokens a model uses, but not
which label they support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headway.bundle import ClassifierBundle
from headway.nn.attention import record_attention
from headway.nn.pooling import AttentionPooling
from headway.notebook_html import join_fragments, paragraph, shaded_words, text
from headway.predict.translation.alignment import tokens_to_words
from headway.text.base import BOS, EOS, PAD

_SPECIAL = (PAD, BOS, EOS)  # tokens that are not part of the text


@dataclass(frozen=True)
class Attribution:
    """The contribution of a token or a word to the label's logit. A negative value is evidence against the label.

    ``attention`` is the weight of the token or word in attention pooling. It is None if the model pools differently.
    """

    text: str
    value: float
    attention: float | None = None


@dataclass(frozen=True)
class Explanation:
    """The evidence for ``label`` in a text.

    Attributes:
        label: The label that is explained.
        probability: Probability of the label.
        logit: Logit of the label.
        tokens: All input tokens of the encoder: the text's tokens, special tokens, and padding if it is not masked.
        words: The words of the text, which are separated by white space. A word's value is the sum over its tokens.
    """

    label: str
    probability: float
    logit: float
    tokens: tuple[Attribution, ...]
    words: tuple[Attribution, ...]

    def __repr__(self) -> str:
        strongest = sorted(self.words, key=lambda word: -abs(word.value))[:3]
        shown = ", ".join(f"{word.text!r} {word.value:+.2f}" for word in strongest)
        return f"<Explanation of {self.label!r}, probability {self.probability:.3f}: {shown}>"

    def _repr_html_(self) -> str:
        largest = max((abs(word.value) for word in self.words), default=0.0) or 1.0
        words = [(word.text, word.value / largest, f"{word.value:+.3f}") for word in self.words]
        head = f"<b>{text(self.label)}</b> probability {self.probability:.3f}; green supports the label, red opposes it"
        return join_fragments(paragraph(head), paragraph(shaded_words(words)))


def explain_label(bundle: ClassifierBundle, source: Int[Tensor, "1 S"], label: str, probability: float) -> Explanation:
    """Explain ``label`` for one text. ``source`` contains its token ids and EOS."""
    model = bundle.model
    ids = model.encoder_tokens(source)[0].tolist()
    count = len(ids) if not model.config.masked else len(ids) - ids.count(PAD)
    with torch.enable_grad():
        embedded = model.embed_source(source).detach().requires_grad_()
        logit = model.logits_from(embedded, source)[0, bundle.labels.index(label)]
        (gradient,) = torch.autograd.grad(logit, embedded)
    values = (embedded.detach() * gradient).sum(2)[0, :count].tolist()
    attention: list[float | None] = [None] * count
    if isinstance(model.pooling, AttentionPooling):
        with torch.inference_mode(), record_attention(model.pooling) as seen:
            model(source)
        attention = seen[0].flatten()[:count].tolist()
    shown = bundle.tokenizer.display(ids[:count])
    tokens = tuple(map(Attribution, shown, values, attention))
    inside = [token for token, index in zip(tokens, ids, strict=False) if index not in _SPECIAL]
    words = _words(inside, subwords=bundle.tokenizer.kind != "whitespace")
    return Explanation(label, probability, logit.item(), tokens, words)


def _words(tokens: Sequence[Attribution], *, subwords: bool) -> tuple[Attribution, ...]:
    """Return the words, each with the sums over its tokens. White space tokens belong to no word."""
    words, starts = tokens_to_words([token.text for token in tokens], subwords=subwords)
    values, weights = [0.0] * len(words), [0.0] * len(words)
    for token, word in zip(tokens, starts, strict=True):
        if word is not None:
            values[word] += token.value
            weights[word] += token.attention or 0.0
    attends = any(token.attention is not None for token in tokens)
    return tuple(
        Attribution(word, value, weight if attends else None)
        for word, value, weight in zip(words, values, weights, strict=True)
    )
