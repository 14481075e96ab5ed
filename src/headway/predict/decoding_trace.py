"""Decoding step by step, as tokens: the decoder's input, the chosen token, and the most probable tokens.

The lines of a trace contain the same information as the page from ``headway inspect``. In each *step*, the decoder
processes the *decoder input*, which begins with <bos>, and predicts the next token.

    Encoder input: Elle ␣est ␣jolie <eos>
    Step 1: <bos> → She | She 91.3 %, It 4.1 %, ...
    Step 2: <bos> She → ␣is | ␣is 85.0 %, ...

In beam search, a step has a line for each hypothesis: its rank, its log-probability, and the tokens with which the
search extends it. A hypothesis that is dropped has no such tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from headway.decode import (
    DecodingOptions,
    Hypothesis,
    NextToken,
    Request,
    SearchModel,
    SearchTrace,
    SearchVocabulary,
    trace_search,
)
from headway.errors import ConfigError, HeadwayError
from headway.predict.language_modeling.continuation import Continuation
from headway.predict.language_modeling.language_model import LanguageModel, Prompt
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES
from headway.predict.results import Source, TokenAlternative, Translation
from headway.predict.translation.glossary import Glossary
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateOptions
from headway.predict.translation.translator import Translator
from headway.text.base import BOS, TextTokenizer
from headway.text.visible_tokens import make_visible

_SMALLEST_SHOWN = 1e-5  # smaller probabilities are printed as "<0.001 %"


@dataclass(frozen=True)
class TracedStep:
    """The decoder's input and predictions for one hypothesis in one step.

    Attributes:
        step: The number of the step, counted from 1.
        group: The number of the hypothesis's group in diverse beam search, or the number of the sample, counted from 1.
        rank: The rank of the hypothesis in its group before the step. 1 is the best.
        log_probability: The sum of the log-probabilities of the hypothesis's tokens so far, in nats, including the
            effects of rules and penalties.
        decoder_input: All input tokens of the decoder so far, in readable form.
        chosen: The tokens with which the search extends the hypothesis. Empty if the search drops the hypothesis.
        most_probable: The most probable next tokens, best first.
        given: Whether the token was given to the model instead of predicted, such as a language code.
    """

    step: int
    group: int
    rank: int
    log_probability: float
    decoder_input: tuple[str, ...]
    chosen: tuple[TokenAlternative, ...]
    most_probable: tuple[TokenAlternative, ...]
    given: bool = False


@dataclass(frozen=True)
class DecodedText:
    """A hypothesis that a search has returned.

    Attributes:
        text: The decoded text.
        log_probability: The log-probability of the tokens, in nats.
        score: The score by which hypotheses are ranked. In beam search, this is the log-probability divided by the
            length penalty.
        finished: Whether the text ended with EOS or a stop string. Otherwise, it was cut off at the maximum length.
    """

    text: str
    log_probability: float
    score: float
    finished: bool


@dataclass(frozen=True)
class DecodingTrace:
    """The record of one search. Its string form has a line for each hypothesis in each step.

    Attributes:
        kind: "single" for one hypothesis (greedy search, or one sample), "beam" for several hypotheses, "groups" for
            several hypotheses in each group, "samples" for several samples.
        encoder_input: The encoder's input tokens, in readable form. None if the model has no encoder.
        steps: The hypotheses in all steps.
        results: The hypotheses that the search returned, best first.
    """

    kind: Literal["single", "beam", "groups", "samples"]
    encoder_input: tuple[str, ...] | None
    steps: tuple[TracedStep, ...]
    results: tuple[DecodedText, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.encoder_input is not None:
            yield f"Encoder input: {_visible(self.encoder_input)}"
        for step in self.steps:
            most_probable = ", ".join(map(_with_percent, step.most_probable))
            yield f"{self._label(step)}: {_visible(step.decoder_input)} → {_choice(step)} | {most_probable}"
        for rank, result in enumerate(self.results, start=1):
            number = f" {rank}" if len(self.results) > 1 else ""
            what = "Finished" if result.finished else "Cut off at the maximum length"
            text = result.text.replace("\n", make_visible("\n"))
            yield f"{what}{number}: {text} | log P {result.log_probability:.3f}, score {result.score:.3f}"

    def _label(self, step: TracedStep) -> str:
        place = {
            "single": "",
            "beam": f", beam {step.rank}",
            "groups": f", group {step.group}, beam {step.rank}",
            "samples": f", sample {step.group}",
        }[self.kind]
        total = "" if self.kind == "single" else f" (log P {step.log_probability:.3f})"
        return f"Step {step.step}{place}{total}"


@dataclass(frozen=True)
class TracedTranslation:
    """A translation and the searches that produced it: at least one for each part of the text."""

    translation: Translation
    searches: tuple[DecodingTrace, ...]


@dataclass(frozen=True)
class TracedContinuations:
    """Continuations of a prompt and the searches that produced them. There are several if the context slides."""

    continuations: tuple[Continuation, ...]
    searches: tuple[DecodingTrace, ...]


def trace_translation(
    translator: Translator,
    text: str | Source,
    options: TranslateOptions = DEFAULT_OPTIONS,
    glossary: Glossary | None = None,
    *,
    num_tokens: int = DEFAULT_ALTERNATIVES,
) -> TracedTranslation:
    """Translate a text, and record each step of each search.

    Args:
        translator: The translator whose searches are recorded.
        text: The text to translate.
        options: The options of the translation.
        glossary: Required translations of certain source phrases.
        num_tokens: Number of most probable tokens to record for each hypothesis in a step.

    Raises:
        HeadwayError: The text cannot be translated, or the options are not compatible with the model.
    """
    search = _TracingSearch(num_tokens)
    (translation,) = translator.with_search(search).translate_each([text], options, glossary)
    if isinstance(translation, HeadwayError):
        raise translation
    bundle = translator.bundle
    readable = partial(_readable, encoder=bundle.source_tokenizer, tokenizer=bundle.target_tokenizer)
    return TracedTranslation(translation, tuple(readable(*searched) for searched in search.searches))


def trace_generation(
    model: LanguageModel, prompt: Prompt = "", *, num_tokens: int = DEFAULT_ALTERNATIVES, **options: Any
) -> TracedContinuations:
    """Continue a prompt, and record each step of each search.

    Args:
        model: The language model whose searches are recorded.
        prompt: The beginning of the text.
        num_tokens: Number of most probable tokens to record for each hypothesis in a step.
        options: The fields of :class:`headway.predict.GenerationOptions`.

    Raises:
        HeadwayError: The options are not compatible, or the prompt leaves no room for new tokens.
    """
    search = _TracingSearch(num_tokens)
    continuations = model.with_search(search).generate(prompt, **options)
    readable = partial(_readable, encoder=None, tokenizer=model.bundle.tokenizer)
    return TracedContinuations(tuple(continuations), tuple(readable(*searched) for searched in search.searches))


class _TracingSearch:
    """A search function (:data:`headway.decode.SearchFunction`) that runs the requests one by one and records them."""

    def __init__(self, num_tokens: int) -> None:
        if num_tokens < 1:
            raise ConfigError(f"num_tokens = {num_tokens}: expected 1 or more")
        self._num_tokens = num_tokens
        self.searches: list[tuple[SearchTrace, DecodingOptions]] = []

    def __call__(
        self,
        model: SearchModel[Any],
        requests: Sequence[Request],
        options: DecodingOptions,
        vocabulary: SearchVocabulary,
        *,
        max_batch_tokens: int,
        max_sequences: int,
    ) -> list[list[Hypothesis]]:
        traces = [
            trace_search(model, request, options, vocabulary, num_tokens=self._num_tokens) for request in requests
        ]
        self.searches += [(trace, options) for trace in traces]
        return [list(trace.hypotheses) for trace in traces]


def _readable(
    search: SearchTrace, options: DecodingOptions, encoder: TextTokenizer | None, tokenizer: TextTokenizer
) -> DecodingTrace:
    """Convert a recorded search to readable tokens. ``encoder`` is the tokenizer of the encoder's input, if any."""
    request = search.request
    first = BOS if request.first_token is None else request.first_token
    start = (first,) if encoder is not None else (*request.source, first)
    steps = []
    for number, hypotheses in enumerate(search.steps, start=1):
        ranks: Counter[int] = Counter()
        for hypothesis in hypotheses:
            ranks[hypothesis.group] += 1
            steps.append(
                TracedStep(
                    step=number,
                    group=hypothesis.group + 1,
                    rank=ranks[hypothesis.group],
                    log_probability=hypothesis.score,
                    decoder_input=tuple(tokenizer.display((*start, *hypothesis.tokens))),
                    chosen=_alternatives(tokenizer, hypothesis.chosen),
                    most_probable=_alternatives(tokenizer, hypothesis.top_tokens),
                    given=number <= len(request.prefix),
                )
            )
    encoder_input = None if encoder is None else tuple(encoder.display(request.source))
    decode = tokenizer.decode_continuation if encoder is None else tokenizer.decode
    results = tuple(
        DecodedText(decode(result.tokens), result.log_probability, result.score, result.finished)
        for result in search.hypotheses
    )
    return DecodingTrace(_kind(options), encoder_input, tuple(steps), results)


def _kind(options: DecodingOptions) -> Literal["single", "beam", "groups", "samples"]:
    if options.sampling is not None:
        return "samples" if options.n_best > 1 else "single"
    if options.groups > 1:
        return "groups"
    return "beam" if options.beam_size > 1 else "single"


def _alternatives(tokenizer: TextTokenizer, tokens: Sequence[NextToken]) -> tuple[TokenAlternative, ...]:
    names = tokenizer.display([token.token for token in tokens])
    return tuple(TokenAlternative(name, token.log_probability) for name, token in zip(names, tokens, strict=True))


def _visible(tokens: Sequence[str]) -> str:
    return " ".join(map(make_visible, tokens))


def _choice(step: TracedStep) -> str:
    """Format the chosen tokens. A token that is not among the most probable ones is followed by its probability."""
    if not step.chosen:
        return "(dropped)"
    if step.given:
        return f"{_visible([token.token for token in step.chosen])} (given to the model)"
    shown = {token.token for token in step.most_probable}
    return ", ".join(
        make_visible(token.token) if token.token in shown else _with_percent(token) for token in step.chosen
    )


def _with_percent(token: TokenAlternative) -> str:
    return f"{make_visible(token.token)} {_percent(math.exp(token.log_probability))}"


def _percent(probability: float) -> str:
    """Format a probability with three significant digits, or fewer if it is small."""
    if probability >= 0.9995:
        return "100 %"
    if probability < _SMALLEST_SHOWN:
        return f"<{100 * _SMALLEST_SHOWN:g} %"
    digits = 1 if probability < 0.001 else 2 if probability < 0.1 else 3
    return f"{f'{100 * probability:#.{digits}g}'.rstrip('.')} %"
