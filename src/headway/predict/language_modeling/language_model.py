"""Continue texts with a language model, and measure how probable texts are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from headway.bundle import LanguageModelBundle
from headway.decode import (
    Hypothesis,
    Request,
    SearchFunction,
    SearchStepsFunction,
    SearchVocabulary,
    search_all,
    search_steps,
)
from headway.decode.generation_options import GenerationOptions
from headway.engine import Precision, fastest_float_precision, search_precision, stored_int8_note, to_search_model
from headway.engine.int8_check import Int8Check, check_int8, read_int8_check
from headway.errors import ConfigError, ContextLengthError, DataError, LengthError
from headway.interop.hub import model_folder
from headway.models.decoder_only import DecoderOnly
from headway.models.recurrent_lm import RecurrentLM
from headway.predict.language_modeling.continuation import (
    Continuation,
    GeneratedToken,
    StreamPart,
    TextStream,
    TokenStream,
)
from headway.predict.language_modeling.perplexity import MeasurementSettings, Perplexity, measure_perplexity
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES, PredictedToken, predicted_tokens
from headway.predict.language_modeling.scored_text import ScoredText, refuse_single_text
from headway.predict.language_modeling.sequence_scores import (
    score_sequences,
    score_sequences_by_steps,
    score_sequences_with_state,
)
from headway.predict.phrases import check_phrases, tokenize_banned_phrases, tokenize_included_phrases, word_boundaries
from headway.predict.presentation import ModelWrapper
from headway.predict.results import Source, TokenAlternative
from headway.predict.shared_weights import Lazy, with_model_copy
from headway.text.base import BOS, EOS, PAD, UNK, ContinuationDecoder, check_no_surrogates

Prompt = str | tuple[int, ...]
"""A text, or its token ids without the tokens that the tokenizer puts before every prompt."""

_PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
_MAX_TOKENS, _MAX_SEQUENCES = 16_384, 64  # maximum number of tokens and of sequences in a batch


class LanguageModel(ModelWrapper):
    """A trained language model with its tokenizer. Several threads may call it at the same time.

    The given model does not change. This object uses a copy, which shares the weights unless it is on another device.
    After further training, create a new object: the copy shares the new weights, but text is generated with a model
    that was converted from the earlier weights.

    Args:
        bundle: The trained model with its tokenizer.
        device: Device to run on: "auto" (a GPU if there is one; the CPU for int8), "cpu", "cuda" or another PyTorch
            device. None means the model's current device.
        precision: Precision of generation; see :func:`headway.engine.choose_precision`. "auto" does not use int8 if it
            changes the most probable tokens of an imported model (:mod:`headway.engine.int8_check`).
        int8_check: The result of the int8 check, if it is already known. Otherwise, an imported model is checked when
            the result is needed.

    Raises:
        ConfigError: The model or the machine does not support the precision.
    """

    bundle: LanguageModelBundle

    def __init__(
        self,
        bundle: LanguageModelBundle,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        int8_check: Int8Check | None = None,
    ) -> None:
        from headway.engine.accelerate import accelerate  # imported here: translators do not need it

        self.bundle = bundle = with_model_copy(bundle, device, needs_cpu=precision == "int8")
        self.device = accelerate(bundle.model).device
        self._model, self._tokenizer = bundle.model, bundle.tokenizer
        self._chosen_precision = search_precision(bundle.model, precision, self.device)
        self._may_search_in_int8 = search_precision(bundle.model, "auto", self.device) == "int8"
        self._requested_precision = precision
        self._search_models = {name: self._convert_once(name) for name in _PRECISIONS}
        self._int8_check, self._check_lock = int8_check, Lock()
        self._search_all: SearchFunction = search_all
        self._search_steps: SearchStepsFunction = search_steps
        self._vocabulary = SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK), extra_eos_ids=bundle.extra_eos_ids)

    def replace_search(self, search: SearchFunction, steps: SearchStepsFunction) -> None:
        """Replace the search functions of all calls, so that calls can share batches."""
        self._search_all, self._search_steps = search, steps

    def with_search(self, search: SearchFunction) -> LanguageModel:
        """Return a copy of this object that uses the same model, but generates with ``search``."""
        copied = copy.copy(self)
        copied._search_all = search
        return copied

    @property
    def context_length(self) -> int | None:
        """The model's context length in tokens; see :attr:`headway.bundle.LanguageModelBundle.context_length`."""
        return self.bundle.context_length

    @property
    def precision(self) -> Precision:
        """The precision in which the model generates. With "auto", the first access may run the int8 check."""
        return fastest_float_precision(self.device) if self._failed_check() else self._chosen_precision

    def precision_note(self) -> str | None:
        """Return why the model does not generate in int8, although int8 is fastest or its weights are stored in int8.

        None means that there is nothing to note.
        """
        return self._failed_check() or stored_int8_note(self.bundle.model, self.precision)

    def _failed_check(self) -> str | None:
        """Return why the model does not generate in int8 if int8 failed the check, or None."""
        check = self.int8_check if self._requested_precision == "auto" else None
        if check is None or check.passed:
            return None
        return f"generates in {fastest_float_precision(self.device)}: {check.describe()}"

    @property
    def int8_check(self) -> Int8Check | None:
        """The measured agreement between int8 and float32. The first access measures it if it is not known.

        None if the model or the machine does not support int8. Also None for a model that was not imported, unless the
        result was passed to the constructor.
        """
        if not self._depends_on_check():
            return None
        with self._check_lock:
            if self._int8_check is None:
                self._int8_check = self._check_int8()
            return self._int8_check

    @property
    def awaits_int8_check(self) -> bool:
        """Whether the first use with "auto" will run the int8 check."""
        return self._int8_check is None and self._depends_on_check()

    def _depends_on_check(self) -> bool:
        """Return whether "auto" chooses int8 only if it passes the check."""
        may_have_outliers = self._int8_check is not None or self.bundle.imported_token_template is not None
        # Without float weights, the int8 weights cannot be compared with the original ones.
        has_floats = self.bundle.model.int8_weights is None
        return has_floats and may_have_outliers and self._may_search_in_int8

    def _check_int8(self) -> Int8Check:
        model = cast("DecoderOnly", self._model)
        check = check_int8(model, self._search_models["int8"](), self._tokenizer, self.bundle.prompt_prefix)
        if not check.passed:
            self._search_models["int8"] = self._convert_once("int8")  # frees the memory of the earlier conversion
        return check

    def _convert_once(self, precision: Precision) -> Callable[[], Any]:
        return Lazy(partial(to_search_model, self._model, precision))

    def _search_model(self) -> Any:
        return self._search_models[self.precision]()

    def warm_up(self) -> None:
        """Continue a short text, so that the model's weights are converted and its kernels compiled."""
        self.generate(max_new_tokens=2)

    @overload
    def generate(self, prompt: Prompt = ..., **options: Any) -> list[Continuation]: ...
    @overload
    def generate(self, prompt: list[Prompt] | list[str], **options: Any) -> list[list[Continuation]]: ...
    def generate(
        self, prompt: Prompt | list[Prompt] | list[str] = "", *, seeds: Sequence[int] | None = None, **options: Any
    ) -> list[Continuation] | list[list[Continuation]]:
        """Generate ``n`` continuations of a prompt, or of each prompt in a list.

        The result for a prompt does not depend on the other prompts, except for rounding.

        Args:
            prompt: The beginning of a text, or a list of them.
            seeds: A random seed for each prompt in a list, so that equal prompts get different continuations.
                Default: the option ``seed`` for every prompt.
            options: The fields of :class:`GenerationOptions`. Default: the model's own options.

        Raises:
            ConfigError: The options are not compatible.
            DataError: A prompt is not valid Unicode.
            LengthError: A prompt leaves no room for new tokens in the model's context.
        """
        chosen = self.generation_options(**options)
        prompts: Sequence[Prompt] = prompt if isinstance(prompt, list) else [prompt]
        encoded = [self._prompt_ids(text, number, chosen) for number, text in enumerate(prompts, start=1)]
        prompt_seeds = [chosen.seed] * len(encoded) if seeds is None else seeds
        beginnings = [(ids, (), seed) for ids, seed in zip(encoded, prompt_seeds, strict=True)]
        by_prompt = [hypotheses[: chosen.n] for hypotheses in self._search(beginnings, chosen)]
        # Continue the hypotheses that reached the end of the context, one request each.
        one = chosen.model_copy(update={"n": 1})
        while unfinished := [
            (number, index)
            for number, hypotheses in enumerate(by_prompt)
            for index, hypothesis in enumerate(hypotheses)
            if self._must_continue(hypothesis, chosen)
        ]:
            more = self._search(
                [
                    (encoded[number], by_prompt[number][index].tokens, prompt_seeds[number])
                    for number, index in unfinished
                ],
                one,
            )
            for (number, index), (rest, *_) in zip(unfinished, more, strict=True):
                by_prompt[number][index] = _joined(by_prompt[number][index], rest)
        results = [[self._continuation(hypothesis, chosen) for hypothesis in hypotheses] for hypotheses in by_prompt]
        return results if isinstance(prompt, list) else results[0]

    def check_prompt(self, prompt: Prompt, **options: Any) -> None:
        """Raise the exception that :meth:`generate` would raise for this prompt and these options, if any."""
        self._prompt_ids(prompt, None, self.generation_options(**options))

    def generation_options(self, **options: Any) -> GenerationOptions:
        """Return complete generation options: the given ones, and the model's own options for all others."""
        return GenerationOptions.from_defaults(self.bundle.generation, options)

    def stream(self, prompt: Prompt = "", **options: Any) -> TextStream:
        """Continue a prompt, and return a stream of the text as it is generated. Characters are never split.

        The concatenated parts equal the text from :meth:`generate` with the same options. If the last token ends inside
        a character, that character is missing in both.

        Raises:
            ConfigError: The options are not compatible, or request several continuations or a beam, whose text is not
                final before the end.
            DataError: The prompt is not valid Unicode.
            LengthError: The prompt leaves no room for new tokens in the model's context.
        """
        return TextStream(self._parts(prompt, options, 0))

    def stream_tokens(
        self, prompt: Prompt = "", *, alternatives: int = DEFAULT_ALTERNATIVES, **options: Any
    ) -> TokenStream:
        """Continue a prompt like :meth:`stream`, and return a stream of the tokens with their probabilities.

        Args:
            prompt: The beginning of a text.
            alternatives: Number of most probable tokens to list at each position.
            options: The fields of :class:`GenerationOptions`.

        Raises the same exceptions as :meth:`stream`.
        """
        if alternatives < 0:
            raise ConfigError(f"alternatives = {alternatives}: expected 0 or more")
        return TokenStream(self._parts(prompt, options, alternatives))

    def _parts(
        self, prompt: Prompt, raw_options: dict[str, Any], alternatives: int
    ) -> Generator[StreamPart, None, Continuation]:
        options = self.generation_options(**{"beam_size": 1, **raw_options})  # the model's own beam size is ignored
        if options.n > 1 or options.beam_size > 1:
            raise ConfigError("streaming needs n = 1 and beam_size = 1: a beam may still change its beginning")
        return self._stream(self._prompt_ids(prompt, 1, options), options, alternatives)

    def _stream(
        self, prompt_ids: Sequence[int], options: GenerationOptions, alternatives: int
    ) -> Generator[StreamPart, None, Continuation]:
        decoder, generated = ContinuationDecoder(self._tokenizer), _NOTHING_YET
        shown, held = 0, ""  # number of characters yielded; text that may be the beginning of a stop string
        while generated is _NOTHING_YET or self._must_continue(generated, options):
            steps = self._search_steps(
                self._search_model(),
                replace(self._request(prompt_ids, generated.tokens, options), alternatives=alternatives),
                options.to_decoding_options(),
                self._vocabulary,
            )
            decoded = 0
            with closing(steps):
                while True:
                    try:
                        (hypothesis,) = next(steps)
                    except StopIteration as end:
                        rest = end.value[0]
                        break
                    held += decoder.decode(hypothesis.tokens[decoded:])
                    final = len(held) - max((_overlap(held, stop) for stop in options.stop), default=0)
                    yield StreamPart(held[:final], self._generated_tokens(hypothesis, decoded))
                    decoded, shown, held = len(hypothesis.tokens), shown + final, held[final:]
            held += decoder.decode(rest.tokens[decoded:])
            last = self._generated_tokens(rest, decoded)
            generated = _joined(generated, rest)
            if last and self._must_continue(generated, options):
                yield StreamPart("", last)
                last = ()
        continuation = self._continuation(generated, options)
        yield StreamPart(continuation.text[shown:], last)
        return continuation

    def _generated_tokens(self, hypothesis: Hypothesis, start: int) -> tuple[GeneratedToken, ...]:
        """Return the tokens of a hypothesis, beginning at index ``start``, with their alternatives."""
        display, ids = self._tokenizer.display, hypothesis.tokens[start:]
        recorded = hypothesis.top_tokens_per_step[start:] or ((),) * len(ids)
        values = hypothesis.token_log_probabilities[start:]
        return tuple(
            GeneratedToken(
                token,
                value,
                tuple(TokenAlternative(display([one.token])[0], one.log_probability) for one in best),
                index,
            )
            for token, index, value, best in zip(display(ids), ids, values, recorded, strict=False)  # without EOS
        )

    def score(
        self, texts: Sequence[str], *, stride: int | None = None, precision: Precision = "float32"
    ) -> list[ScoredText]:
        """Return the log-probability, in nats, of each token in each text and of EOS after the text.

        Texts longer than the context are scored in windows, as in :meth:`perplexity`. The result for a text does not
        depend on the other texts, except for rounding.

        Args:
            texts: The texts to score.
            stride: Tokens between the beginnings of two windows. Default: half of the context.
            precision: Precision of the measured model; see :meth:`perplexity`.

        Raises:
            DataError: A text is not valid Unicode.
            ConfigError: The stride is longer than the context, the model has no windows, or the model or the machine
                does not support the precision.
        """
        settings = self._measurement(stride, precision)
        refuse_single_text(texts)
        encoded = self._tokenizer.encode_batch(list(map(self.bundle.normalized, texts)))
        log_probs = self._log_probs(encoded, settings)
        return [
            ScoredText(tuple(self._tokenizer.display(ids)), tuple(values[:-1].tolist()), float(values[-1]))
            for ids, values in zip(encoded, log_probs, strict=True)
        ]

    def decode_prompt(self, prompt: Prompt) -> tuple[str, int]:
        """Return the text and the number of tokens of a prompt.

        Raises:
            DataError: The prompt is not valid Unicode, or contains an id outside the vocabulary.
        """
        ids = self._encode(prompt, 1)
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(ids), len(ids)

    def predict_tokens(self, text: Prompt, continuation: tuple[int, ...] = (), *, count: int) -> list[PredictedToken]:
        """Return the probability of each token in a text, and the ``count`` most probable tokens at each position.

        Args:
            text: The text to predict. Its first token is predicted from BOS.
            continuation: The ids of more tokens after the text.
            count: Number of most probable tokens to list at each position.

        Raises:
            DataError: The text is not valid Unicode.
            LengthError: The text is longer than the model's context.
        """
        ids = [*self._encode(text, 1), *continuation]
        if self.context_length is not None and len(ids) > self.context_length:
            raise LengthError(
                f"a text of {len(ids)} tokens is longer than the model's context of {self.context_length} tokens"
            )
        with torch.inference_mode():
            hidden = self._model.hidden(torch.tensor([[BOS, *ids[:-1]]], device=self.device))[0]
            return list(predicted_tokens(self._model.projection, hidden, ids, 0, count, self._tokenizer))

    def perplexity(
        self, texts: Iterable[str], *, stride: int | None = None, precision: Precision = "float32"
    ) -> Perplexity:
        """Measure how well the model predicts texts.

        A text that is longer than the context is processed in windows. Each window begins ``stride`` tokens after the
        previous one, and only tokens that no earlier window has predicted are counted. So each token is counted once
        and, except in the first window, has at least context_length - stride tokens of context. A model that carries
        its state needs no windows: the context of each token is the whole text before it.

        Args:
            texts: The texts to predict. Each is predicted from its beginning, without the texts before it. About a
                million characters are processed at a time.
            stride: Tokens between the beginnings of two windows. The maximum, the context length, is fastest. Default:
                half of the context.
            precision: Precision of the measured model. "auto" means the precision in which the model generates. All
                precisions except float32 are measured one token at a time, as in generation, which takes longer.

        Raises:
            DataError: There is no text, or a text is not valid Unicode.
            ConfigError: The stride is longer than the context, the model has no windows, or the model or the machine
                does not support the precision.
        """
        settings = self._measurement(stride, precision)
        refuse_single_text(texts)
        texts = map(self.bundle.normalized, texts)
        return measure_perplexity(texts, self._tokenizer, settings, partial(self._log_probs, settings=settings))

    def signature(self, stride: int | None = None, precision: Precision = "float32") -> str:
        """Return the signature of measurements with this stride and precision; see :attr:`Perplexity.signature`.

        Raises:
            ConfigError: The stride is longer than the context, the model has no windows, or the model or the machine
                does not support the precision.
        """
        return self._measurement(stride, precision).signature

    def _measurement(self, stride: int | None, precision: Precision) -> MeasurementSettings:
        search_precision(self._model, precision, self.device)  # raises an error if the precision is not supported
        precision = self.precision if precision == "auto" else precision
        return MeasurementSettings.choose(self.context_length, stride, precision)

    def _log_probs(self, encoded: Sequence[Sequence[int]], settings: MeasurementSettings) -> list[Float[Tensor, " _"]]:
        """Return the log-probability of each token in each text and of EOS after the text."""
        context, stride, precision = settings.context, settings.stride, settings.precision
        if context is None or stride is None:
            model = cast("RecurrentLM", self._model)  # only a recurrent model has an unlimited context
            return score_sequences_with_state(model, encoded, block_length=model.config.max_length)
        if precision != "float32":
            return score_sequences_by_steps(self._search_models[precision](), encoded, context=context, stride=stride)
        return score_sequences(self._model, encoded, context=context, stride=stride)

    def _encode(self, text: Prompt, number: int) -> list[int]:
        if isinstance(text, str):
            check_no_surrogates(text, number)
            return self._tokenizer.encode(self.bundle.normalized(text))
        size = self._tokenizer.vocab_size
        if unknown := [index for index in text if not 0 <= index < size]:
            raise DataError(f"prompt {number}: no token has the id {unknown[0]}; ids are from 0 to {size - 1}")
        return list(text)

    def _prompt_ids(self, prompt: Prompt, number: int | None, options: GenerationOptions) -> tuple[int, ...]:
        """Return the token ids of a prompt, without the prefix of every prompt. ``number`` is for error messages."""
        encoded = tuple(self._encode(prompt, number or 1))
        context, beginning = self.context_length, max(len(self.bundle.prompt_prefix), 1)
        if context is not None and beginning >= context:
            raise LengthError(f"the model's context of {context} tokens leaves no room for text")
        if options.beyond_context == "stop" and context is not None and beginning + len(encoded) >= context:
            which = "the prompt" if number is None else f"prompt {number}"
            raise ContextLengthError(
                f"{which} has {len(encoded)} tokens, but the model's context has {context}, and the begin symbol and "
                "at least one new token must also fit into it",
                number=number or 1,
                num_tokens=len(encoded),
                context_length=context,
                hint="shorten the prompt, or set beyond_context = 'slide'",
            )
        return encoded

    def _search(
        self, prompts: Sequence[tuple[Sequence[int], Sequence[int], int]], options: GenerationOptions
    ) -> list[list[Hypothesis]]:
        """Continue prompts. Each is a tuple of the prompt's ids, the ids generated so far, and the random seed."""
        return self._search_all(
            self._search_model(),
            [replace(self._request(prompt, generated, options), seed=seed) for prompt, generated, seed in prompts],
            options.to_decoding_options(),
            self._vocabulary,
            max_batch_tokens=_MAX_TOKENS,
            max_sequences=max(_MAX_SEQUENCES // max(options.n, options.beam_size), 1),
        )

    def _request(self, prompt: Sequence[int], generated: Sequence[int], options: GenerationOptions) -> Request:
        """Return the request to continue ``prompt`` and ``generated``, truncated on the left to fit the context."""
        read, limit, context = (*prompt, *generated), options.max_new_tokens - len(generated), self.context_length
        beginning = self.bundle.prompt_prefix
        if context is not None:
            room = context - max(len(beginning), 1)
            if len(read) >= room:
                read = read[len(read) - min(context // 2, room - 1) :]
            limit = min(limit, room - len(read))
        ids = (*beginning, *read) or (BOS,)
        phrases = Source(
            "", include=tuple(tuple(alternatives.split("|")) for alternatives in options.include), banned=options.ban
        )
        check_phrases(phrases)
        return Request(
            source=ids[:-1],
            first_token=ids[-1],
            limit=limit,
            include=tokenize_included_phrases(self._tokenizer, phrases),
            boundaries=word_boundaries(self._tokenizer) if options.include else None,
            banned=tokenize_banned_phrases(self._tokenizer, phrases),
            should_end=self._stop_rule(generated, options.stop) if options.stop else None,
        )

    def _stop_rule(self, generated: Sequence[int], stops: Sequence[str]) -> Callable[[Sequence[int]], bool]:
        """Return a function that returns whether the last generated token completes a stop string.

        The function decodes only the last tokens, unless their text contains a stop string. It decodes enough tokens
        before the last one to find any string that this token completes. The first three characters of the decoded text
        may be wrong, because they may be parts of a character whose first bytes are not decoded.
        """
        decode, needed = self._tokenizer.decode_continuation, max(map(len, stops)) + 3

        def ends(tokens: Sequence[int]) -> bool:
            whole, size = (*generated, *tokens), needed + 1
            while size < len(whole) and len(decode(whole[-size:-1])) < needed:
                size *= 2
            if _first_stop(decode(whole[-size:]), stops) is None:
                return False
            return _first_stop(decode(whole), stops) is not None

        return ends

    def _must_continue(self, hypothesis: Hypothesis, options: GenerationOptions) -> bool:
        """Return whether a continuation ended only because the context was full, so that it must be continued."""
        return (
            options.beyond_context == "slide"
            and not hypothesis.finished
            and len(hypothesis.tokens) < options.max_new_tokens
        )

    def _continuation(self, hypothesis: Hypothesis, options: GenerationOptions) -> Continuation:
        text = self._tokenizer.decode_continuation(hypothesis.tokens)
        end = _first_stop(text, options.stop)
        reason: Literal["end", "stop", "length"] = "end" if hypothesis.finished else "length"
        return Continuation(
            text=text[:end],
            tokens=tuple(self._tokenizer.display(hypothesis.tokens)),
            token_log_probabilities=hypothesis.token_log_probabilities[: len(hypothesis.tokens)],
            finish_reason=reason if end is None else "stop",
            ids=tuple(hypothesis.tokens),
        )


def load_language_model(
    folder: str | Path, *, device: str | torch.device | None = "auto", precision: Precision = "auto"
) -> LanguageModel:
    """Load the language model in ``folder``, or a model from the Hugging Face Hub (``hf:NAME``).

    For the other arguments, see :class:`LanguageModel`.

    Raises:
        ConfigError: The model or the machine does not support the device or the precision.
        BundleError: The folder does not contain a language model, or one of its files is missing, damaged or belongs to
            another model.
    """
    folder = model_folder(folder)
    bundle = LanguageModelBundle.load(folder)
    return LanguageModel(bundle, device=device, precision=precision, int8_check=read_int8_check(folder))


_NOTHING_YET = Hypothesis((), 0.0, 0.0)


def _joined(hypothesis: Hypothesis, following: Hypothesis) -> Hypothesis:
    """Append ``following``, which continues ``hypothesis``, to it."""
    log_probs = (*hypothesis.token_log_probabilities[: len(hypothesis.tokens)], *following.token_log_probabilities)
    return replace(
        following,
        tokens=(*hypothesis.tokens, *following.tokens),
        token_log_probabilities=log_probs,
        log_probability=math.fsum(log_probs),
        top_tokens_per_step=(*hypothesis.top_tokens_per_step[: len(hypothesis.tokens)], *following.top_tokens_per_step),
    )


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the start of the stop string that ends first in ``text``, or None if it contains none.

    Later text does not change the result, so generated text may be searched while it grows.
    """
    endings = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(endings)[1] if endings else None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of ``text`` that is a prefix of ``stop``."""
    return next((size for size in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:size])), 0)
