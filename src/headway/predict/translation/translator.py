"""Translate text: plan search requests, find candidates, and merge the parts of each text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from headway.bundle import Bundle
from headway.decode import (
    DecodingOptions,
    Ensemble,
    Hypothesis,
    SearchFunction,
    SearchStepsFunction,
    score_targets,
    search_all,
    search_steps,
    top_next_tokens,
)
from headway.decode.request import PAPER_OPTIONS
from headway.decode.scoring import score_by_steps
from headway.engine import (
    Precision,
    Shortlist,
    search_precision,
    stored_int8_note,
    to_search_model,
    unsupported_reason,
)
from headway.errors import ConfigError, DataError, HeadwayError, LengthError
from headway.hardware import choose_device
from headway.interop.hub import model_folder
from headway.interop.onnx import DECODER_STEP_FILE, OnnxModel
from headway.models.base import TranslationModel
from headway.models.registry import architecture_of
from headway.nn.attention import attention_is_observed
from headway.predict.presentation import ModelWrapper
from headway.predict.results import (
    Candidate,
    ScoredTarget,
    Source,
    TokenAlternative,
    Translation,
    WordAlignment,
    raise_first_error,
)
from headway.predict.shared_weights import Lazy, with_model_copy
from headway.predict.translation.alignment import alignment_module, word_alignment
from headway.predict.translation.calibration import Calibration, read_calibration
from headway.predict.translation.call import TranslationCall
from headway.predict.translation.find_candidates import CandidateFinder, search_vocabulary
from headway.predict.translation.glossary import Glossary, ModelGlossary, is_glossary_prepared, prepare_glossary
from headway.predict.translation.marked_translation import MarkedTexts
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateOptions
from headway.predict.translation.plan import CallSettings, RequestBuilder, encode_each
from headway.predict.translation.search_tree import SearchTree
from headway.predict.translation.shortlisting import read_shortlist
from headway.predict.translation.text_translator import TextTranslator
from headway.text.base import BOS, EOS
from headway.text.special_tokens import SpecialTokens

DEFAULT_MAX_SOURCE_TOKENS = 256  # few training sentences are longer, so few models can translate longer ones well
_SMALL_BATCH_TOKENS = 512  # on a CPU, larger batches are hardly faster
_LARGE_BATCH = 32  # number of texts, each with several hypotheses
_SHARED_ATTENTION = 1_000_000  # maximum number of attention weights of a call that shares batches
_SHARED_POSITIONS = 1024  # maximum length of a sequence if calls share batches and the model itself has no limit


class Translator(ModelWrapper, TextTranslator):
    """Translates text with a trained model.

    The given model does not change. The translator uses a copy, which shares the weights unless it is on another
    device. After further training, create a new translator: the copy shares the new weights, but searches use a model
    that was converted from the earlier weights.

    Args:
        bundle: The model with its tokenizers.
        device: Device to run on: "auto" (a GPU if there is one; the CPU for int8 and ONNX models), "cpu", "cuda" or
            another PyTorch device. None means the model's current device.
        max_batch_tokens: Maximum size of a batch: number of sentences x source tokens.
        max_source_tokens: Maximum number of source tokens, including EOS and language tag. Longer texts are split into
            sentences, and longer sentences into parts. None means the model's number of learned positions, or 256 if it
            has no such limit, because few models have been trained on longer sentences.
        avoid_flagged: Whether a flagged best hypothesis (see :mod:`headway.predict.translation.quality`) is replaced by
            the most probable hypothesis of the search that has no flags.
        alignment_layer: The decoder block whose attention gives alignments, counted from 0, or from the end if
            negative. None means the last block, or the second-to-last in decoders of four or more.
        precision: Precision of matrix products in searches; see :func:`headway.engine.choose_precision`. Alignments and
            the scores of given targets are computed in float32.
        onnx_model: The same model exported to ONNX. It is used for searches and scores instead of ``bundle.model``.
            Alignments are still computed by ``bundle.model``.
        shortlist: Restricts the tokens that searches choose from. Texts with a forced prefix or with phrases to include
            use the whole vocabulary. A shortlist cannot be combined with a coverage penalty.
        calibration: The distribution from which the flags ``unlikely`` and ``forced`` are computed. Without it,
            ``unlikely`` is None and ``forced`` is never set.

    Attributes:
        plain_search_reason: The reason why searches use the plain model, which is slower, or None if they use an
            optimized model.

    Raises:
        ConfigError: The model or the machine does not support the precision or the shortlist.
    """

    bundle: Bundle

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str | torch.device | None = None,
        max_batch_tokens: int = 4096,
        max_source_tokens: int | None = None,
        avoid_flagged: bool = True,
        alignment_layer: int | None = None,
        precision: Precision = "float32",
        onnx_model: OnnxModel | None = None,
        shortlist: Shortlist | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        needs_cpu = precision == "int8" or onnx_model is not None
        self.bundle = bundle = with_model_copy(bundle, device, needs_cpu=needs_cpu)
        self.device = bundle.model.device
        self.max_batch_tokens = max_batch_tokens
        self.avoid_flagged = avoid_flagged
        self.alignment_layer = alignment_layer
        self.calibration = calibration
        self._search_all: SearchFunction = search_all
        self._search_steps: SearchStepsFunction = search_steps
        self._requested_source_tokens = max_source_tokens
        self._default_positions: int | None = None  # maximum length of a sequence if the model has no limit
        self._max_attention: int | None = None  # maximum number of attention weights that a call returns
        chosen = search_precision(bundle.model, precision, self.device)
        plain_reason = unsupported_reason(bundle.model)
        if shortlist is not None and (plain_reason or onnx_model):
            raise ConfigError(f"a shortlist: {plain_reason or 'an ONNX model has its whole vocabulary in its graph'}")
        self._stored_integers_note = stored_int8_note(self.bundle.model, chosen)
        self.plain_search_reason = None if onnx_model else plain_reason
        self._has_shortlist = shortlist is not None
        self._precision: Precision = "float32" if onnx_model else chosen
        self._model: Any = onnx_model or bundle.model
        # The accelerated model is used for forward passes: scores, alignments, and searches that need attention or
        # cannot use a converted model.
        lock = Lock()  # while one thread replaces the model's layers, no other thread may convert them
        self._accelerated = Lazy(partial(_accelerate, bundle.model), lock)
        self._forward_model = Lazy(lambda: onnx_model) if onnx_model else self._accelerated
        self._search_model = self._forward_model
        if not plain_reason and onnx_model is None:
            self._search_model = Lazy(partial(to_search_model, bundle.model, chosen, shortlist=shortlist), lock)

    @classmethod
    def ensemble(cls, translators: Sequence[Translator]) -> Translator:
        """Return a translator that averages the probabilities of several translators.

        The device and settings of the first model are used.

        Raises:
            ConfigError: The list is empty, or the tokenizers or languages differ.
        """
        if not translators:
            raise ConfigError("an ensemble needs at least one model")
        first = translators[0]
        if len(translators) == 1:
            return first
        if any(translator._has_shortlist for translator in translators):
            raise ConfigError("an ensemble averages over whole vocabularies; load the models without shortlists")
        for number, other in enumerate(translators[1:], start=2):
            for side, ours in first.bundle.tokenizers.items():
                theirs = other.bundle.tokenizers[side]
                if ours.fingerprint != theirs.fingerprint:
                    raise ConfigError(
                        f"model {number} of the ensemble and the first have different {side} tokenizers ("
                        f"{theirs.vocab_size} and {ours.vocab_size} tokens); the models must have the same tokenizers"
                    )
            here, there = _direction(first.bundle), _direction(other.bundle)
            if here and there and here != there:
                raise ConfigError(f"model {number} of the ensemble translates {there}, the first {here}")
            if other.device != first.device:
                raise ConfigError(
                    f"model {number} of the ensemble is on {other.device}, the first on {first.device}; load all "
                    "models on one device, such as 'cpu'"
                )
        joined = copy.copy(first)
        joined._model = Ensemble([translator._model for translator in translators])
        joined._forward_model = Lazy(lambda: Ensemble([translator._forward_model() for translator in translators]))
        joined._search_model = Lazy(lambda: Ensemble([translator._search_model() for translator in translators]))
        return joined

    @property
    def precision(self) -> Precision:
        """The precision of searches."""
        return self._precision

    def precision_note(self) -> str | None:
        """Return a note if the weights are stored as integers but searches use another precision, otherwise None."""
        return self._stored_integers_note

    @property
    def max_source_tokens(self) -> int:
        """The length in tokens, with EOS and language tag, above which a text is split."""
        limit, requested = self.max_positions, self._requested_source_tokens
        if requested is None:
            requested = self.bundle.model.max_length or DEFAULT_MAX_SOURCE_TOKENS
        return requested if limit is None else min(limit, requested)

    @property
    def max_positions(self) -> int | None:
        """The maximum length of a sequence in tokens, with EOS or BOS. None means no limit."""
        limit: int | None = self._model.max_length
        return self._default_positions if limit is None else limit

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a multilingual model can translate into. Empty if there is only one target language."""
        return self.bundle.token_template.target_languages

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The languages that an imported multilingual model translates from. Empty if calls need not specify it."""
        return self.bundle.token_template.source_languages

    @cached_property
    def can_align(self) -> bool:
        """Whether the model has the cross-attention that alignment needs."""
        return bool(architecture_of(self.bundle.model.config).get_cross_attentions(self.bundle.model))

    def check_alignment(self) -> None:
        """Raise an error if the model has no attention, or if the chosen decoder block does not exist."""
        alignment_module(self.bundle.model, self.alignment_layer)

    def count_source_tokens(self, text: str) -> int:
        """Return the number of tokens in a source text, including EOS and language tag.

        Raises:
            DataError: The text is not valid Unicode.
        """
        template = self.bundle.token_template
        special = len(template.source_prefix) + len(template.source_suffix)
        return len(self.bundle.source_tokenizer.encode(self.bundle.normalized(text))) + special

    def replace_search(self, search: SearchFunction, steps: SearchStepsFunction) -> None:
        """Replace the search functions of all calls, so that calls can share batches.

        Other batches become small, because they delay the steps of these searches. A model without a maximum length
        gets a maximum of 1,024 tokens, because the time and memory of attention grow with the square of the length. The
        results of a call contain at most a million attention weights.
        """
        self._default_positions, self._max_attention = _SHARED_POSITIONS, _SHARED_ATTENTION
        self._search_all, self._search_steps = search, steps
        self.max_batch_tokens = min(self.max_batch_tokens, _SMALL_BATCH_TOKENS)

    def with_search(self, search: SearchFunction) -> Translator:
        """Return a copy of this translator that uses the same model, but searches with ``search``."""
        copied = copy.copy(self)
        copied._search_all = search
        return copied

    def warm_up(self) -> None:
        """Translate short texts, so that the model's weights are converted and its kernels compiled.

        A large batch is also translated, because large batches use separate kernels.
        """
        sources, targets = self.source_languages, self.target_languages
        options = TranslateOptions(
            decoding=DecodingOptions(max_length=4),
            source_language=sources[0] if sources else None,
            target_language=targets[0] if targets else None,
        )
        self.translate_each(["a", "b"], options)
        self.translate_each(["a"] * _LARGE_BATCH, options)

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: TranslateOptions = DEFAULT_OPTIONS,
        glossary: Glossary | None = None,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts. A text that cannot be translated is represented by its error."""
        options = options.with_defaults(self.bundle.search)
        if options.alignment:
            self.check_alignment()
        call = self._call(options, glossary)
        marked = MarkedTexts(texts, options, can_align=self.can_align)
        marked.store(marked.units, call.translate(marked.units))
        if retries := marked.prepare_retries():
            marked.store(retries, call.translate(retries))
        return marked.merge()

    def _call(self, options: TranslateOptions, glossary: Glossary | None) -> TranslationCall:
        """Return the object that translates the texts of one call, without their markup and placeholders.

        Raises:
            ConfigError: The options or the glossary are not compatible with the model.
        """
        settings = self._settings(options, glossary)
        if options.decoding.coverage_penalty and self._has_shortlist:
            raise ConfigError("a coverage penalty cannot be combined with a shortlist; use only one of them")
        needs_attention = options.decoding.coverage_penalty > 0 or attention_is_observed()
        calibration, languages = self.calibration, (options.source_language, options.target_language)
        if calibration and (calibration.source_language, calibration.target_language) != languages:
            calibration = None
        return TranslationCall(
            settings=settings,
            finder=CandidateFinder(
                settings,
                self._forward_model() if needs_attention else self._search_model(),
                self._search_all,
                max_constraint_cost=calibration.max_constraint_cost if calibration else None,
            ),
            alignment_model=self._accelerated,
            alignment_layer=self.alignment_layer,
            max_attention=self._max_attention if options.alignment else 0,
            calibration=calibration,
        )

    def _settings(self, options: TranslateOptions, glossary: Glossary | None = None) -> CallSettings:
        task, decoding, positions = self.bundle.task, options.decoding, self.max_positions
        source_language = options.source_language or task.source_language
        return CallSettings(
            bundle=self.bundle,
            decoding=decoding,
            special_tokens=self.bundle.token_template.fill(
                source_language=options.source_language, target_language=options.target_language
            ),
            source_language=source_language,
            languages_differ=_differ(source_language, options.target_language or task.target_language),
            glossary=None if glossary is None else self._model_glossary(glossary, decoding, positions),
            max_source_tokens=self.max_source_tokens,
            max_positions=positions,
            max_batch_tokens=self.max_batch_tokens,
            avoid_flagged=self.avoid_flagged,
        )

    def search_tree(
        self,
        text: str,
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> SearchTree:
        """Translate a text with beam search, and return the tree of all hypotheses that were considered.

        Markup and placeholders are treated as plain text.

        Raises:
            LengthError: The text is too long to be translated in one part.
            DataError: The text is blank or not valid Unicode.
            ConfigError: The options have no beam.
        """
        options = options.with_defaults(self.bundle.search)
        if options.sampling is not None or options.groups > 1:
            raise ConfigError("a search tree needs a single beam; omit sampling and groups")
        settings = self._settings(
            TranslateOptions(decoding=options, source_language=source_language, target_language=target_language)
        )
        (plan,) = RequestBuilder(settings).plan_each([Source(text)])
        if isinstance(plan, HeadwayError):
            raise plan
        if not plan.requests:
            raise DataError("the text is blank; expected a text to translate")
        if len(plan.requests) > 1:
            raise LengthError(
                f"a text of more than {self.max_source_tokens} tokens is translated in {len(plan.requests)} parts; "
                "give one of its sentences"
            )
        search = self._search_steps(
            self._forward_model() if options.coverage_penalty else self._search_model(),
            plan.requests[0].request,
            options,
            search_vocabulary(self.bundle.target_tokenizer),
        )
        steps: list[list[Hypothesis]] = []
        while True:
            try:
                steps.append(next(search))
            except StopIteration as end:
                return SearchTree.of(
                    steps,
                    end.value,
                    beam_size=options.beam_size,
                    start=len(settings.special_tokens.target_prefix),
                    tokenizer=self.bundle.target_tokenizer,
                )

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        as_searched: bool = False,
    ) -> list[ScoredTarget]:
        """Return the probability of each target given its source, computed in a forward pass without a search.

        Long texts are not split.

        Args:
            sources: The source texts.
            targets: One target for each source.
            target_language: Target language, for a model with several.
            source_language: Source language, for a model with several.
            as_searched: Whether to compute the probabilities as searches do, in their precision and one step at a time.
                This takes longer.

        Raises:
            HeadwayError: A pair cannot be scored. The message contains the pair's number, counted from 1.
        """
        languages = {"target_language": target_language, "source_language": source_language}
        results = self.score_each(sources, targets, **languages, as_searched=as_searched)
        return raise_first_error(results, "text", 1)

    def score_each(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        as_searched: bool = False,
    ) -> list[ScoredTarget | HeadwayError]:
        """Score like :meth:`score`. A pair that cannot be scored is represented by its error."""
        if len(sources) != len(targets):
            raise DataError(f"{len(sources):,} sources but {len(targets):,} targets; expected a target for each source")
        special = self.bundle.token_template.fill(source_language=source_language, target_language=target_language)
        normalized = self.bundle.normalized
        source_ids = encode_each(self.bundle.source_tokenizer, list(map(normalized, sources)))
        target_ids = encode_each(self.bundle.target_tokenizer, list(map(normalized, targets)))
        pairs = [self._framed(special, *pair) for pair in zip(source_ids, target_ids, strict=True)]
        good = [pair for pair in pairs if not isinstance(pair, HeadwayError)]
        rows = [source for source, _ in good], [target for _, target in good]
        if as_searched:
            log_probs = score_by_steps(
                self._search_model(), rows[0], [BOS] * len(good), [[*row, EOS] for row in rows[1]]
            )
        else:
            size = self.max_batch_tokens
            vocabulary = search_vocabulary(self.bundle.target_tokenizer)
            log_probs = score_targets(self._forward_model(), *rows, vocabulary, max_batch_tokens=size)
        remaining = iter(log_probs)

        def scored(target: list[int], scores: tuple[float, ...]) -> ScoredTarget:
            in_target = slice(len(special.target_prefix), None)
            tokens = self.bundle.target_tokenizer.display(target[in_target])
            return ScoredTarget(sum(scores[in_target]), tuple(tokens), scores[in_target])

        return [pair if isinstance(pair, HeadwayError) else scored(pair[1], next(remaining)) for pair in pairs]

    def alternatives(
        self,
        source: str,
        prefix: str = "",
        *,
        count: int = 10,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> list[TokenAlternative]:
        """Return the ``count`` most probable tokens after ``prefix``, best first.

        White space at the end of the prefix is ignored.
        """
        special = self.bundle.token_template.fill(source_language=source_language, target_language=target_language)
        tokenizer, normalized = self.bundle.target_tokenizer, self.bundle.normalized
        source_ids = self.bundle.source_tokenizer.encode(normalized(source))
        pair = self._framed(special, source_ids, tokenizer.encode(normalized(prefix).rstrip()))
        if isinstance(pair, HeadwayError):
            raise pair
        next_tokens = top_next_tokens(self._forward_model(), *pair, count, search_vocabulary(tokenizer))
        return [TokenAlternative(tokenizer.display([token.token])[0], token.log_probability) for token in next_tokens]

    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        """Return the word alignment of a candidate that was translated with ``alignment=True``."""
        return word_alignment(candidate, self.bundle.source_tokenizer, self.bundle.target_tokenizer)

    def has_prepared(self, glossary: Glossary) -> bool:
        """Return whether a glossary is ready for use. Preparing a large glossary takes seconds at its first use."""
        return is_glossary_prepared(glossary, self.bundle.target_tokenizer)

    def check_glossary(self, glossary: Glossary) -> None:
        """Raise an error if a glossary entry has no target phrase that this model can generate."""
        self._model_glossary(glossary, PAPER_OPTIONS, self.max_positions)

    def _framed(
        self, special: SpecialTokens, source: list[int] | HeadwayError, target: list[int] | HeadwayError
    ) -> tuple[list[int], list[int]] | HeadwayError:
        """Add the special tokens to source and target. Return an error if a text is invalid or too long."""
        if isinstance(source, HeadwayError):
            return source
        if isinstance(target, HeadwayError):
            return target
        pair, limit = (special.add_to_source(source), [*special.target_prefix, *target]), self.max_positions
        for what, length in (("source", len(pair[0])), ("target", len(pair[1]) + 1)):
            if limit is not None and length > limit:
                return LengthError(
                    f"a {what} of {length:,} tokens is too long: this model supports at most {limit:,}; "
                    "use its sentences one by one"
                )
        return pair

    def _model_glossary(self, glossary: Glossary, options: DecodingOptions, positions: int | None) -> ModelGlossary:
        """Return the glossary in the model's tokens."""
        if options.sampling is None and (options.beam_size == 1 or options.groups > 1):
            raise ConfigError(
                f"a glossary cannot be combined with {'groups' if options.groups > 1 else 'beam_size = 1'}, because "
                "the beam is divided among the phrases to include; use a beam_size of at least 2, without groups"
            )
        limits = [limit for limit in (options.max_length, positions and positions - 1) if limit is not None]
        return prepare_glossary(glossary, self.bundle.target_tokenizer, min(limits, default=None))


def _accelerate(model: TranslationModel) -> TranslationModel:
    from headway.engine.accelerate import accelerate  # imported here: searches with a converted model do not need it

    return accelerate(model)


def _direction(bundle: Bundle) -> str | None:
    """Return the model's languages, such as "de to en", or None if they are unknown or the model is multilingual."""
    task = bundle.task
    known = _differ(task.source_language, task.target_language) and not bundle.token_template.target_languages
    return f"{task.source_language} to {task.target_language}" if known else None


def _differ(source_language: str, target_language: str) -> bool:
    """Return whether the languages are known to differ. Languages with the default names are unknown."""
    return source_language != target_language and (source_language, target_language) != ("source", "target")


def load_translator(
    folder: str | Path,
    *,
    device: str | torch.device | None = "auto",
    max_source_tokens: int | None = None,
    avoid_flagged: bool = True,
    alignment_layer: int | None = None,
    precision: Precision = "auto",
    shortlist: bool = False,
) -> Translator:
    """Load the translation model in ``folder``, or a model from the Hugging Face Hub (``hf:NAME``).

    For the other arguments, see :class:`Translator`. A model that was exported to ONNX runs in onnxruntime, on the CPU,
    in float32.

    Raises:
        BundleError: ``folder`` is not a model folder, or a file in it is missing or invalid.
        ConfigError: The model or the machine does not support the device or the precision (an ONNX folder supports only
            the CPU and float32), or the folder has no shortlist although ``shortlist`` is True.
    """
    folder = model_folder(folder)
    onnx_model = OnnxModel.load(folder) if (folder / DECODER_STEP_FILE).is_file() else None
    if onnx_model is not None and precision not in ("auto", "float32"):
        raise ConfigError(f"precision {precision!r}: {folder} is an ONNX folder, which runs in float32; omit precision")
    if onnx_model is not None and choose_device(device or "cpu", needs_cpu=True).type != "cpu":
        raise ConfigError(f"device = {str(device)!r}: {folder} is an ONNX folder, which runs on the CPU; use 'cpu'")
    bundle = Bundle.load(folder)
    lists = read_shortlist(bundle, folder) if shortlist else None
    if shortlist and lists is None:
        raise ConfigError(
            f"{folder} has no shortlist; learn one with headway shortlist {folder} --source FILE --target FILE"
        )
    return Translator(
        bundle,
        device=device,
        max_source_tokens=max_source_tokens,
        avoid_flagged=avoid_flagged,
        alignment_layer=alignment_layer,
        precision=precision if onnx_model is None else "float32",
        onnx_model=onnx_model,
        shortlist=lists,
        calibration=read_calibration(bundle, folder),
    )
