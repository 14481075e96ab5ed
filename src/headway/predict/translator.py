"""The way from text to text: plan, search, check, and put together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, overload

import torch

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Ensemble, Hypothesis, Request, search
from headway.errors import ConfigError, HeadwayError
from headway.inference import InferenceTransformer, Precision, choose_precision, unsupported
from headway.interop.onnx import OnnxModel, is_onnx_folder
from headway.models.build import TranslationModel
from headway.models.transformer import Transformer
from headway.predict.alignment import aligning_attention, attention_maps, hard_alignment, word_pairs, words_of
from headway.predict.failing import without_errors
from headway.predict.joining import join_translation
from headway.predict.phrases import groups, holds_word, spelling_in
from headway.predict.planning import Job, Limits, Plan, checked_plan, is_possible, plan_texts
from headway.predict.quality import find_flags
from headway.predict.results import Alternative, Candidate, ScoredTarget, Source, Translation, WordAlignment
from headway.predict.scoring import next_tokens, score_texts
from headway.text.framing import Frame
from headway.text.tokenizer import BOS, EOS, PAD, UNK

__all__ = ["DEFAULT_SOURCE_TOKENS", "Translator", "load_translator"]

DEFAULT_SOURCE_TOKENS = 256  # few training sentences are longer, so few models have learned to translate what is
_CHUNK_LINES = 2048  # lines read ahead of a stream, to be sorted by length
_LOGITS_IN_MEMORY = 1 << 24  # of one decoding step: sentences x beam x vocabulary
_RESPELLINGS = 4  # times that search is asked again because a banned phrase came in other tokens
_PAPER = DecodingOptions()


class Translator:
    """A trained model with its tokenizers.

    Args:
        bundle: The model.
        device: Where to run it; None leaves it where it is.
        max_tokens: Size of a batch while decoding: sentences x source tokens.
        max_source_tokens: A longer text, counted with end symbol and language tag, is split into sentences, and a
            sentence that is still longer inside. None: as many as the model has learned positions for, or 256 where
            positions are sinusoidal, for few models have been trained on longer ones.
        guard: Whether a best hypothesis that is flagged (see :mod:`headway.predict.quality`) falls back to the most
            probable one of the same search that is not.
        alignment_layer: The decoder block whose attention gives alignments, counted from 0 or, negative, from the end;
            None: the last but one.
        precision: Of the matrix products of searches; see :func:`headway.inference.choose_precision`. Scores of given
            targets and alignments are computed in float32.
        engine: The same model exported to ONNX, which then computes searches and scores in place of ``bundle.model``;
            alignments stay with that.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str | torch.device | None = None,
        max_tokens: int = 2048,
        max_source_tokens: int | None = None,
        guard: bool = True,
        alignment_layer: int | None = None,
        precision: Precision = "float32",
        engine: OnnxModel | None = None,
    ) -> None:
        self.bundle = bundle
        self.device = torch.device(device) if device else next(bundle.model.parameters()).device
        self.max_tokens = max_tokens
        self.guard = guard
        self.alignment_layer = alignment_layer
        self._asked_source_tokens = max_source_tokens
        bundle.model.to(self.device).eval()
        choose_precision(precision, self.device)  # that what is not here is refused now
        slow = _no_faster_form(bundle.model)
        if slow and precision not in ("auto", "float32"):
            raise ConfigError(f"precision {precision!r}: {slow}")
        self._members: tuple[_Member, ...] = (_Member(engine or bundle.model, precision),)

    @classmethod
    def ensemble(cls, translators: Sequence[Translator]) -> Translator:
        """One translator out of several, whose probabilities are averaged; device and settings are the first's.

        Raises:
            ConfigError: There is none, or their tokenizers differ.
        """
        if not translators:
            raise ConfigError("an ensemble of no models; give at least one")
        first = translators[0]
        for number, other in enumerate(translators[1:], start=2):
            for side in ("source", "target"):
                ours, theirs = (getattr(each.bundle, f"{side}_tokenizer") for each in (first, other))
                if ours.fingerprint != theirs.fingerprint:
                    raise ConfigError(
                        f"model {number} of the ensemble has another {side} tokenizer than the first "
                        f"({theirs.vocab_size} and {ours.vocab_size} tokens); only models that were trained with the "
                        "same one can be averaged"
                    )
            if other.device != first.device:
                raise ConfigError(f"model {number} of the ensemble is on {other.device}, the first on {first.device}")
        joined = copy.copy(first)
        joined._members = tuple(model for each in translators for model in each._members)
        return joined

    @property
    def max_source_tokens(self) -> int:
        """The length over which a text is split, in tokens with end symbol and language tag."""
        positions = self._positions
        asked = self._asked_source_tokens
        if asked is None:
            asked = self.bundle.model.max_length or DEFAULT_SOURCE_TOKENS
        return asked if positions is None else min(positions, asked)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a model with several can be asked for; empty for a model with one."""
        return self.bundle.framing.target_languages

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first signature wins
        self,
        text: str | Source,
        options: DecodingOptions = ...,
        *,
        target_language: str | None = ...,
        source_language: str | None = ...,
        alignment: bool = ...,
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Sequence[str | Source],
        options: DecodingOptions = ...,
        *,
        target_language: str | None = ...,
        source_language: str | None = ...,
        alignment: bool = ...,
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Source | Sequence[str | Source],
        options: DecodingOptions = _PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of them in one go.

        Args:
            text: The source or sources. A blank one translates to an empty text.
            options: How to search.
            target_language: Which of its ``target_languages`` a model with several translates into.
            source_language: The language of the sources, for imported models that are told it.
            alignment: Whether to find out which target token comes from which source token.

        Raises:
            HeadwayError: A text cannot be translated; the message has its number, counted from 1, in a list.
        """
        single = isinstance(text, (str, Source))
        texts = [text] if isinstance(text, (str, Source)) else text
        found = self.translate_each(
            texts, options, target_language=target_language, source_language=source_language, alignment=alignment
        )
        results = without_errors(found, None if single else "text", 1)
        return results[0] if single else results

    def translate_lines(
        self,
        lines: Iterable[str | Source],
        options: DecodingOptions = _PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> Iterator[Translation]:
        """Translate a stream in its order, reading some lines ahead so that sentences of like length meet.

        The arguments are those of :meth:`translate`. Memory does not grow with the number of lines.

        Raises:
            HeadwayError: A line cannot be translated; the message has its number.
        """
        lines = iter(lines)
        first = 1
        while chunk := list(islice(lines, _CHUNK_LINES)):
            found = self.translate_each(
                chunk, options, target_language=target_language, source_language=source_language, alignment=alignment
            )
            yield from without_errors(found, "line", first)
            first += len(chunk)

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: DecodingOptions = _PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts; one that cannot be translated has the error in its place and stops no other.

        The arguments are those of :meth:`translate`.
        """
        frame = self.bundle.framing.frame(source_language=source_language, target_language=target_language)
        if alignment:
            aligning_attention(self.bundle.model, self.alignment_layer)  # where there is none, before the search
        sources = [Source(text) if isinstance(text, str) else text for text in texts]
        task = self.bundle.task
        limits = Limits(
            self.max_source_tokens, options.max_length, self._positions, source_language or task.source_language
        )
        plans = [checked_plan(plan, options) for plan in plan_texts(sources, self.bundle, frame, limits)]
        work = _Work(
            [job for plan in plans if isinstance(plan, Plan) for job in plan.jobs],
            options,
            frame,
            differ=_differ(source_language or task.source_language, target_language or task.target_language),
        )
        found = self._find(work)
        if alignment:
            self._align(work, found)
        candidates = iter([each.candidate for each in one] for one in found)
        return [
            plan if isinstance(plan, HeadwayError) else _joined_parts(plan, [next(candidates) for _ in plan.jobs])
            for plan in plans
        ]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> list[ScoredTarget]:
        """How probable each target is as the translation of its source, by one pass without a search.

        Raises:
            HeadwayError: A pair cannot be scored (of a source or target nothing is split); the message has its number.
        """
        found = self.score_each(sources, targets, target_language=target_language, source_language=source_language)
        return without_errors(found, "text", 1)

    def score_each(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> list[ScoredTarget | HeadwayError]:
        """:meth:`score`, with the error in the place of a pair that cannot be scored."""
        frame = self.bundle.framing.frame(source_language=source_language, target_language=target_language)
        return score_texts(
            self.bundle,
            self._model,
            frame,
            sources,
            targets,
            positions=self._positions,
            max_tokens=self.max_tokens,
        )

    def alternatives(
        self,
        source: str,
        prefix: str = "",
        *,
        count: int = 10,
        target_language: str | None = None,
        source_language: str | None = None,
    ) -> list[Alternative]:
        """What the model would go on with after ``prefix``: the ``count`` most probable tokens, best first."""
        frame = self.bundle.framing.frame(source_language=source_language, target_language=target_language)
        return next_tokens(self.bundle, self._model, frame, source, prefix, count=count, positions=self._positions)

    def words(self, candidate: Candidate) -> WordAlignment:
        """A candidate's alignment from word to word, where it has one."""
        if candidate.alignment is None:
            raise ConfigError("this candidate has no alignment; translate with alignment=True")
        joined = self.bundle.source_tokenizer.kind != "whitespace", self.bundle.target_tokenizer.kind != "whitespace"
        source_words, in_source = words_of(candidate.alignment.source_tokens, joined=joined[0])
        target_words, in_target = words_of(candidate.tokens, joined=joined[1])
        pairs = word_pairs(candidate.alignment.pairs, in_source, in_target)
        return WordAlignment(tuple(source_words), tuple(target_words), tuple(pairs))

    @property
    def _positions(self) -> int | None:
        lengths = [each.model.max_length for each in self._members if each.model.max_length is not None]
        return min(lengths, default=None)

    @property
    def _model(self) -> Any:
        return _joined([each.model for each in self._members])

    def _find(self, work: _Work) -> list[list[_Found]]:
        """The candidates of each job, best first, ``n_best`` of them or fewer.

        A search that is sure of its best has finished few others. For the guard to choose from, one whose best is
        flagged is asked again for as many as its beam has.
        """
        hypotheses = self._hypotheses(work)
        found = [self._chosen(work, job, each) for job, each in zip(work.jobs, hypotheses, strict=True)]
        beam = work.options.beam_size
        if self.guard and work.options.sampling is None and work.options.n_best < beam:
            few = [at for at, each in enumerate(hypotheses) if 0 < len(each) < beam and _flagged(found[at])]
            more = work.options.model_copy(update={"n_best": beam})
            for at, each in zip(few, self._search([work.jobs[at].request for at in few], more), strict=True):
                found[at] = self._chosen(work, work.jobs[at], each)
        return found

    def _hypotheses(self, work: _Work) -> list[list[Hypothesis]]:
        """What search finds for each job, asked again where a banned phrase is among it."""
        hypotheses = self._search([job.request for job in work.jobs], work.options)
        for _ in range(_RESPELLINGS):
            again = {
                index: request
                for index, (job, found) in enumerate(zip(work.jobs, hypotheses, strict=True))
                if job.source.banned and (request := self._respelled(job, found[: work.options.n_best], work.options))
            }
            for index, found in zip(again, self._search(list(again.values()), work.options), strict=True):
                if found:  # or else what there is stays, and tells which phrases it holds
                    hypotheses[index] = found
                    work.jobs[index] = replace(work.jobs[index], request=again[index])
        return hypotheses

    def _respelled(self, job: Job, hypotheses: Sequence[Hypothesis], options: DecodingOptions) -> Request | None:
        """The request with the spellings banned in which banned phrases have come all the same.

        A phrase has many spellings in tokens, and a search that may not use the usual one often takes another. None
        where no phrase has come, or where phrases to include are spelled so.
        """
        tokenizer, start = self.bundle.target_tokenizer, len(job.request.prefix)
        found: dict[tuple[int, ...], None] = {}
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens[start:]
            for phrase in job.source.banned:
                if holds_word(tokenizer.decode(tokens), phrase) and (ids := spelling_in(tokens, phrase, tokenizer)):
                    found[ids] = None
        request = replace(job.request, banned=(*job.request.banned, *found))
        return request if found and is_possible(request, options) else None

    def _chosen(self, work: _Work, job: Job, hypotheses: Sequence[Hypothesis]) -> list[_Found]:
        """The best, with the guard on the best that is sound, and the others in their order."""
        if not hypotheses:
            return []
        best = self._found(work, job, hypotheses[0])
        if not (self.guard and best.candidate.flags):
            return [best, *(self._found(work, job, each) for each in hypotheses[1 : work.options.n_best])]
        every = [best, *(self._found(work, job, each) for each in hypotheses[1:])]
        sound = next((each for each in every if _is_sound(each.candidate, best.candidate)), None)
        if sound is not None:
            fallen = _Found(sound.tokens, replace(sound.candidate, flags=("fell_back",)))
            every = [fallen, *(each for each in every if each is not sound)]
        return every[: work.options.n_best]

    def _found(self, work: _Work, job: Job, hypothesis: Hypothesis) -> _Found:
        tokenizer, forced = self.bundle.target_tokenizer, len(work.frame.target_prefix)
        tokens, each = hypothesis.tokens[forced:], hypothesis.token_log_probabilities[forced:]
        text, source = tokenizer.decode(tokens), job.source
        phrases = groups(source)
        after_prefix = tokenizer.decode(hypothesis.tokens[len(job.request.prefix) :]) if source.banned else ""
        candidate = Candidate(
            text=text,
            score=hypothesis.score,
            log_probability=sum(each) if forced else hypothesis.log_probability,
            tokens=tuple(tokenizer.display(tokens)),
            token_log_probabilities=each,
            ids=tuple(tokens),
            flags=find_flags(
                source.text, text, job.ids, tokens, finished=hypothesis.finished, languages_differ=work.differ
            ),
            unmet=tuple(phrases[i][0] for i in hypothesis.unmet if not any(p.strip() in text for p in phrases[i])),
            banned=tuple(phrase for phrase in source.banned if holds_word(after_prefix, phrase)),
        )
        return _Found(hypothesis.tokens, candidate)

    def _align(self, work: _Work, found: list[list[_Found]]) -> None:
        """Give every candidate its alignment."""
        tokenizer, frame = self.bundle.source_tokenizer, work.frame
        places = [(row, place) for row, candidates in enumerate(found) for place in range(len(candidates))]
        sources = [work.jobs[row].request.source for row, _ in places]
        order = sorted(range(len(places)), key=lambda index: len(sources[index]))
        for batch in _batches(order, sources, self.max_tokens, self.max_tokens):
            targets = [found[row][place].tokens for row, place in (places[index] for index in batch)]
            maps = attention_maps(
                self.bundle.model, [sources[index] for index in batch], targets, begin=BOS, layer=self.alignment_layer
            )
            for index, attention in zip(batch, maps, strict=True):
                row, place = places[index]
                ids, start = work.jobs[row].ids, len(frame.source_prefix)
                own = attention[len(frame.target_prefix) :, start : start + len(ids)]
                alignment = hard_alignment(own, tokenizer.display(ids))
                each = found[row][place]
                found[row][place] = _Found(each.tokens, replace(each.candidate, alignment=alignment))

    def _search(self, requests: Sequence[Request], options: DecodingOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each request, best first, found in batches of like length; none where rules forbid all."""
        # A coverage penalty asks what is attended to; only the model itself tells.
        model = self._model if options.coverage_penalty else _joined([each.searcher for each in self._members])
        results = dict[int, list[Hypothesis]]()
        tokenizer = self.bundle.target_tokenizer
        forbidden = (PAD, BOS, UNK, *(tokenizer.tag_id(tag) for tag in tokenizer.tags))
        rows = max(options.beam_size, options.n_best)
        if options.beam_size > tokenizer.vocab_size:
            raise ConfigError(
                f"beam size {options.beam_size}: expected from 1 (greedy search) to {tokenizer.vocab_size}, the size "
                "of the vocabulary; the paper uses 4"
            )
        most = max(1, _LOGITS_IN_MEMORY // (rows * tokenizer.vocab_size))
        sources = [request.source for request in requests]
        order = sorted(range(len(requests)), key=lambda index: len(sources[index]))
        for batch in _batches(order, sources, self.max_tokens, most):
            asked = [requests[index] for index in batch]
            found = search(model, asked, options, begin=BOS, end=EOS, forbidden=forbidden)
            results.update(zip(batch, found, strict=True))
        return [results[index] for index in range(len(requests))]


@dataclass(frozen=True)
class _Member:
    """A model, which computes scores, and what searches with its weights."""

    model: TranslationModel | OnnxModel
    precision: Precision

    @cached_property
    def searcher(self) -> InferenceTransformer | TranslationModel | OnnxModel:
        """Made when it is first needed."""
        model = self.model
        if isinstance(model, Transformer) and _no_faster_form(model) is None:
            return InferenceTransformer(model, self.precision)
        return model


def _no_faster_form(model: TranslationModel) -> str | None:
    """Why a model searches in its own form, in float32; None where there is a faster one."""
    if isinstance(model, Transformer):
        return unsupported(model.config)
    return f"a {model.config.kind} model has no form that is laid out for speed; it decodes in float32"


def _joined(models: Sequence[Any]) -> Any:
    return models[0] if len(models) == 1 else Ensemble(models)


def _flagged(found: Sequence[_Found]) -> bool:
    """Whether the guard has found nothing better than a flagged candidate."""
    return bool(set(found[0].candidate.flags) - {"fell_back"})


def _is_sound(candidate: Candidate, best: Candidate) -> bool:
    """Whether it is not flagged, and fails no phrase that the most probable one does not fail."""
    failed = {*best.unmet, *best.banned}
    return not candidate.flags and failed.issuperset((*candidate.unmet, *candidate.banned))


def _joined_parts(plan: Plan, found: list[list[Candidate]]) -> Translation | HeadwayError:
    """The translation, or why there is none."""
    if all(found):
        return join_translation(plan, found)
    return ConfigError(
        "no target is left: banned phrases, min_length, no_repeat_ngram and the like exclude every one; ask for less"
    )


def _differ(source_language: str, target_language: str) -> bool:
    """Whether the languages are known to differ: those of a model that was not told are "source" and "target"."""
    return source_language != target_language and (source_language, target_language) != ("source", "target")


@dataclass
class _Work:
    """What is to be searched for in one call; ``differ``: whether source and target language do."""

    jobs: list[Job]
    options: DecodingOptions
    frame: Frame
    differ: bool


@dataclass(frozen=True)
class _Found:
    """A candidate and the tokens that it was made of, those that the frame forces included."""

    tokens: tuple[int, ...]
    candidate: Candidate


def _batches(order: Sequence[int], sources: Sequence[Sequence[int]], max_tokens: int, most: int) -> Iterator[list[int]]:
    """Cut ``order``, which rises in length: at most ``most`` sentences, ``max_tokens`` with their padding."""
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) == most or (len(batch) + 1) * len(sources[index]) > max_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def load_translator(
    folder: str | Path,
    *,
    device: str | None = None,
    max_source_tokens: int | None = None,
    guard: bool = True,
    alignment_layer: int | None = None,
    precision: Precision = "auto",
) -> Translator:
    """The translation model in ``folder``, ready to translate; the other arguments are those of :class:`Translator`.

    A folder that was exported to ONNX runs in onnxruntime, on the CPU, in float32.

    Raises:
        BundleError: It is not a model folder, or a file in it is missing, damaged or foreign.
        ConfigError: A precision that is not here, or for an ONNX folder another than float32.
    """
    engine = OnnxModel.load(Path(folder)) if is_onnx_folder(Path(folder)) else None
    if engine is not None and precision not in ("auto", "float32"):
        raise ConfigError(f"precision {precision!r}: {folder} is an ONNX folder, which runs in float32; leave it out")
    return Translator(
        Bundle.load(Path(folder)),
        device=device or ("cuda" if engine is None and torch.cuda.is_available() else "cpu"),
        max_source_tokens=max_source_tokens,
        guard=guard,
        alignment_layer=alignment_layer,
        precision=precision if engine is None else "float32",
        engine=engine,
    )
