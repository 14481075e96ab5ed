"""Fill in masked words, and score texts, with a masked language model.

The model predicts the probability of each token at a masked position, given the rest of the text. Several masked tokens
are filled in from left to right. The probability of a filling is the product of the probabilities of its tokens. Each
is computed given the text in which the masks before it are filled in and the tokens after it are still masked.

The score of a text is its pseudo-log-likelihood (Salazar et al. 2020, "Masked Language Model Scoring", equation 2):
each token is masked in turn, and the log-probabilities of all tokens, each given all others, are summed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.bundle import MaskedLanguageModelBundle
from headway.decode import give_way
from headway.errors import BundleError, ConfigError, DataError, LengthError
from headway.interop.hub import model_folder
from headway.predict.language_modeling.scored_text import ScoredText, refuse_single_text
from headway.predict.presentation import ModelWrapper
from headway.predict.shared_weights import with_model_copy
from headway.text.base import BOS, EOS, MASK, NUM_SPECIAL, UNK, check_no_surrogates

_MAX_TOKENS, _MAX_LOGITS = 16_384, 1 << 24  # maximum number of tokens and of logits in a batch
MAX_MASKS = 20
MIN_BEAM = 10  # minimum number of partial fillings to keep after each masked word

_Query = tuple[tuple[int, ...], int]  # the ids of a text, and the position at which a token is predicted


@dataclass(frozen=True)
class Filling:
    """A way to fill in the masks in a text.

    Attributes:
        text: The complete text.
        words: The text filled in for each mask, without surrounding white space.
        probability: The joint probability of all filled-in tokens; see
            :mod:`headway.predict.language_modeling.masked_language_model`.
        token_log_probabilities: Log-probability of each filled-in token, in nats.
        ids: The ids of the filled-in tokens.
    """

    text: str
    words: tuple[str, ...]
    probability: float
    token_log_probabilities: tuple[float, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class _Partial:
    """A partly filled-in text: its ids with BOS and EOS, and the ids and log-probabilities of the filled-in words."""

    ids: tuple[int, ...]
    words: tuple[tuple[int, ...], ...] = ()
    log_probs: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        return math.fsum(self.log_probs)


class MaskedLanguageModel(ModelWrapper):
    """A trained masked language model with its tokenizer. Several threads may call it at the same time.

    The given model does not change. This object uses a copy, which shares the weights unless it is on another device.

    Args:
        bundle: The trained model with its tokenizer.
        device: Device to run on: "auto" (a GPU if there is one), "cpu", "cuda" or another PyTorch device. None means
            the model's current device.

    Attributes:
        mask_id: The id of the mask token.
    """

    bundle: MaskedLanguageModelBundle

    def __init__(self, bundle: MaskedLanguageModelBundle, *, device: str | torch.device | None = None) -> None:
        from headway.engine.accelerate import accelerate  # imported here: translators do not need it

        self.bundle = bundle = with_model_copy(bundle, device)
        self.device = accelerate(bundle.model).device
        self._model, self._tokenizer = bundle.model, bundle.tokenizer
        assert bundle.tokenizer.mask_id is not None  # the bundle has checked it
        self.mask_id = bundle.tokenizer.mask_id
        tags = (bundle.tokenizer.tag_id(tag) for tag in bundle.tokenizer.tags)
        special = {*range(NUM_SPECIAL), *tags, self.mask_id}
        self._special_ids = torch.tensor(sorted(special))

    @property
    def context_length(self) -> int:
        """The maximum length of a text in tokens, including BOS and EOS."""
        length: int = self._model.config.max_length
        return length

    def warm_up(self) -> None:
        """Score a short text, so that the model's kernels are compiled."""
        self.score(["a"])

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text with BOS and EOS, and with :attr:`mask_id` for each "[MASK]".

        Raises:
            DataError: The text is not valid Unicode.
            LengthError: The text is longer than the model's context.
        """
        check_no_surrogates(text, 1)
        return self._template(self.bundle.normalized(text).split(MASK))[0]

    def fill(self, text: str, top: int = 5, candidates: Sequence[str] | None = None) -> list[Filling]:
        """Return the most probable ways to fill in the masks ("[MASK]") in a text, best first.

        Without ``candidates``, each mask is replaced by one token. If there are several masks, beam search with a beam
        of at least ten fillings is used.

        Args:
            text: A text with at least one "[MASK]".
            top: Number of fillings to return.
            candidates: The words or phrases to choose from for each mask. A candidate may have several tokens. Its
                probability is the product of the tokens' probabilities, so longer candidates are less probable.

        Raises:
            DataError: The text has no mask or more than 20, or is not valid Unicode.
            LengthError: The text is longer than the model's context.
            ConfigError: ``top`` is not positive, or a candidate is empty or contains unknown tokens.
        """
        check_no_surrogates(text, 1)
        text = self.bundle.normalized(text)
        parts = text.split(MASK)
        if not 2 <= len(parts) <= MAX_MASKS + 1:
            raise DataError(
                f"the text has {len(parts) - 1 or 'no'} {MASK}; expected from 1 to {MAX_MASKS}, such as "
                f"'Paris is the {MASK} of France.'"
            )
        if top < 1:
            raise ConfigError(f"top = {top}: expected at least 1")
        if candidates is not None and not candidates:
            raise ConfigError("candidates: expected at least one word or phrase")
        if candidates is not None:
            refuse_single_text(candidates)
        ids, after_space = self._template(parts)
        partials = [_Partial(ids)]
        for spaced in after_space:
            beam = max(top, MIN_BEAM)
            if candidates is None:
                partials = self._best_tokens(partials, beam)
            else:
                words = [self._candidate(candidate, spaced) for candidate in candidates]
                partials = self._best_candidates(partials, words, beam)
        fillings = [self._filling(partial) for partial in partials[:top]]
        if text.startswith(" "):
            return fillings
        # The token predicted for the first word may begin with a space that does not belong to the text.
        return [replace(filling, text=filling.text.lstrip(" ")) for filling in fillings]

    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """Return the log-probability, in nats, of each token in each text given all other tokens in the text.

        The sum over a text is its pseudo-log-likelihood. BOS and EOS are given, not predicted. If a text is longer than
        the model's context, a window around the masked token is used. The result for a text does not depend on the
        other texts, except for rounding.

        Raises:
            DataError: A text is not valid Unicode.
            ConfigError: ``texts`` is a single text.
        """
        refuse_single_text(texts)
        ids = self._tokenizer.encode_batch(list(map(self.bundle.normalized, texts)))
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, text_ids in enumerate(ids):
            by_length[len(text_ids)].append(number)
        log_probs: list[Sequence[float]] = [()] * len(ids)
        for length, numbers in by_length.items():
            if length:
                scores = self._pseudo_log_probs(torch.tensor([ids[number] for number in numbers]))
                for number, values in zip(numbers, scores.tolist(), strict=True):
                    log_probs[number] = values
        return [
            ScoredText(tuple(self._tokenizer.display(text_ids)), tuple(values), None)
            for text_ids, values in zip(ids, log_probs, strict=True)
        ]

    def _pseudo_log_probs(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        length = ids.size(1)
        width = min(length, self.context_length - 2)
        places = torch.arange(length)
        starts = (places - width // 2).clamp(0, length - width)
        windows = F.pad(ids[:, starts.unsqueeze(1) + torch.arange(width)].flatten(0, 1), (1, 0), value=BOS)
        windows = F.pad(windows, (0, 1), value=EOS)
        hidden = (places - starts + 1).repeat(len(ids))
        windows[torch.arange(len(windows)), hidden] = self.mask_id
        parts = zip(
            *(torch.split(tensor, self._rows(width + 2)) for tensor in (windows, hidden, ids.flatten())), strict=True
        )
        log_probs = [
            self._log_probs(rows, positions).gather(1, tokens.unsqueeze(1)).squeeze(1)
            for rows, positions, tokens in parts
        ]
        return torch.cat(log_probs).view_as(ids)

    @torch.inference_mode()
    def hidden_states(self, tokens: Int[Tensor, "N S"], positions: Int[Tensor, " N"]) -> Float[Tensor, "N D"]:
        """Return, for one position of each row, the state from which the output projection computes logits.

        All rows have the same length, so that results do not depend on padding.
        """
        head_states = []
        rows = self._rows(tokens.size(1))
        for some, where in zip(torch.split(tokens, rows), torch.split(positions, rows), strict=True):
            give_way()
            states = self._model.hidden(some.to(self.device))
            head_states.append(
                self._model.head(states[torch.arange(len(some), device=self.device), where.to(self.device)])
            )
        return torch.cat(head_states)

    @torch.inference_mode()
    def most_probable_tokens(self, states: Float[Tensor, "N D"]) -> list[int]:
        """Return the most probable token, excluding special tokens, for each state from :meth:`hidden_states`."""
        logits = self._model.projection(states).float().cpu().index_fill(1, self._special_ids, -math.inf)
        return list(map(int, logits.argmax(1)))

    @torch.inference_mode()
    def _log_probs(self, tokens: Int[Tensor, "N S"], positions: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Return the log-probabilities of all tokens at one position in each row. All rows have the same length."""
        states = torch.split(self.hidden_states(tokens, positions), self._rows(tokens.size(1)))
        log_probs = torch.cat([self._model.projection(some).float().log_softmax(-1).cpu() for some in states])
        if bool(log_probs.isnan().any()):
            raise BundleError("the model's probabilities are NaN: its weights are damaged")
        return log_probs

    def _rows(self, length: int) -> int:
        """Return the number of rows of this length that fit into a batch."""
        return max(min(_MAX_TOKENS // length, _MAX_LOGITS // self._tokenizer.vocab_size), 1)

    def _template(self, parts: Sequence[str]) -> tuple[tuple[int, ...], list[bool]]:
        """Return the ids of a text with masks, and for each mask whether its word includes the space before it.

        A space before a word is part of the word's first token, unless tokens are single characters.
        """
        spaced = [part.endswith(" ") and self._tokenizer.kind != "characters" for part in parts[:-1]]
        before = [part[:-1] if space else part for part, space in zip(parts[:-1], spaced, strict=True)]
        pieces = self._tokenizer.encode_batch([*before, parts[-1]])
        ids = [BOS]
        for piece in pieces[:-1]:
            ids += [*piece, self.mask_id]
        ids += [*pieces[-1], EOS]
        self._check_length(len(ids))
        return tuple(ids), spaced

    def _candidate(self, text: str, spaced: bool) -> tuple[int, ...]:
        check_no_surrogates(text, 1)
        ids = self._tokenizer.encode(" " * spaced + self.bundle.normalized(text).strip())
        if not text.strip() or UNK in ids:
            raise ConfigError(
                f"candidate {text!r}: expected a word or phrase of characters that are in the model's vocabulary"
            )
        return tuple(ids)

    def _check_length(self, length: int) -> None:
        if length > self.context_length:
            raise LengthError(
                f"the text has {length - 2:,} tokens, but the model's context has {self.context_length - 2:,} besides "
                "the begin and end symbols; shorten the text"
            )

    def _best_tokens(self, partials: Sequence[_Partial], beam: int) -> list[_Partial]:
        """Return the ``beam`` best ways to fill in the first mask of ``partials`` with one token."""
        rows = torch.tensor([partial.ids for partial in partials])
        places = (rows == self.mask_id).int().argmax(1)
        log_probs = self._log_probs(rows, places).index_fill(1, self._special_ids, -math.inf)
        values, tokens = log_probs.topk(min(beam, log_probs.size(1)))
        extended = [
            self._extended(partial, (token,), (value,))
            for partial, *best in zip(partials, tokens.tolist(), values.tolist(), strict=True)
            for token, value in zip(*best, strict=True)
            if value > -math.inf
        ]
        return sorted(extended, key=lambda partial: -partial.total)[:beam]

    def _best_candidates(
        self, partials: Sequence[_Partial], candidates: Sequence[tuple[int, ...]], beam: int
    ) -> list[_Partial]:
        """Return the ``beam`` best ways to fill in the first mask of ``partials`` with a candidate."""
        # For each length and query: the tokens whose probabilities are needed.
        queries: dict[int, dict[_Query, set[int]]] = defaultdict(lambda: defaultdict(set))
        parts = [
            (
                partial,
                word,
                [_query(partial.ids, partial.ids.index(self.mask_id), word, done) for done in range(len(word))],
            )
            for partial in partials
            for word in candidates
        ]
        for _, word, asked_for in parts:
            for query, token in zip(asked_for, word, strict=True):
                self._check_length(len(query[0]))
                queries[len(query[0])][query].add(token)
        predicted: dict[tuple[_Query, int], float] = {}
        for length, wanted in queries.items():
            asked, batch = list(wanted), self._rows(length)
            for first in range(0, len(asked), batch):  # in batches, which limits the number of distributions in memory
                some = asked[first : first + batch]
                rows, places = zip(*some, strict=True)
                for query, log_probs in zip(
                    some, self._log_probs(torch.tensor(rows), torch.tensor(places)), strict=True
                ):
                    tokens = sorted(wanted[query])
                    values = log_probs[torch.tensor(tokens)].tolist()
                    predicted |= {(query, token): value for token, value in zip(tokens, values, strict=True)}
        extended = [
            self._extended(partial, word, tuple(predicted[pair] for pair in zip(asked_for, word, strict=True)))
            for partial, word, asked_for in parts
        ]
        return sorted(extended, key=lambda partial: -partial.total)[:beam]

    def _extended(self, partial: _Partial, word: tuple[int, ...], log_probs: tuple[float, ...]) -> _Partial:
        index = partial.ids.index(self.mask_id)
        return _Partial(
            (*partial.ids[:index], *word, *partial.ids[index + 1 :]),
            (*partial.words, word),
            (*partial.log_probs, *log_probs),
        )

    def _filling(self, partial: _Partial) -> Filling:
        return Filling(
            text=self._tokenizer.decode(partial.ids[1:-1]),
            words=tuple(self._tokenizer.decode(word).strip() for word in partial.words),
            probability=math.exp(partial.total),
            token_log_probabilities=partial.log_probs,
            ids=tuple(chain.from_iterable(partial.words)),
        )


def _query(ids: tuple[int, ...], position: int, word: tuple[int, ...], num_filled: int) -> _Query:
    """Return ``ids`` with ``word`` in place of the mask at ``position``, and the position of its next token to predict.

    Only the first ``num_filled`` tokens of the word are filled in. The others are masks.
    """
    masks = [ids[position]] * (len(word) - num_filled)
    return (*ids[:position], *word[:num_filled], *masks, *ids[position + 1 :]), position + num_filled


def load_masked_language_model(
    folder: str | Path, *, device: str | torch.device | None = "auto"
) -> MaskedLanguageModel:
    """Load the masked language model in ``folder``. For ``device``, see :class:`MaskedLanguageModel`.

    Raises:
        ConfigError: The machine does not have the device.
        BundleError: ``folder`` is not the model folder of a masked language model, or a file in it is missing or
            invalid.
    """
    return MaskedLanguageModel(MaskedLanguageModelBundle.load(model_folder(folder)), device=device)
