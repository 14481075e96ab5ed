"""The way from text to text: plan, find candidates, and put together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from headway.bundle import Bundle
from headway.decode import DecodingOptions
from headway.engine import Precision, Shortlist, choose_precision
from headway.engine.accelerate import accelerate
from headway.errors import ConfigError, HeadwayError
from headway.interop.onnx import OnnxModel, is_onnx_folder
from headway.predict.alignment import alignment_module, to_word_alignment, tokens_to_words
from headway.predict.failing import without_errors
from headway.predict.finding import Finder, Work
from headway.predict.joining import join_translation
from headway.predict.members import Member, Members, no_faster_form
from headway.predict.planning import Limits, Plan, checked_plan, plan_texts
from headway.predict.results import Alternative, Candidate, ScoredTarget, Source, Translation, WordAlignment
from headway.predict.scoring import next_tokens, score_texts
from headway.predict.shortlisting import read_shortlist
from headway.predict.translating import PAPER, TextTranslator

__all__ = ["DEFAULT_SOURCE_TOKENS", "Translator", "load_translator"]

DEFAULT_SOURCE_TOKENS = 256  # few training sentences are longer, so few models have learned to translate what is


class Translator(TextTranslator):
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
            None: the last, of four or more the last but one.
        precision: Of the matrix products of searches; see :func:`headway.engine.choose_precision`. Scores of given
            targets and alignments are computed in float32.
        engine: The same model exported to ONNX, which then computes searches and scores in place of ``bundle.model``;
            alignments stay with that.
        shortlist: Which tokens searches choose from. A forced prefix, and a text with phrases to include, have the
            whole vocabulary; no coverage penalty goes together with it.

    Raises:
        ConfigError: A precision or a shortlist that this model, or this machine, cannot have.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str | torch.device | None = None,
        max_tokens: int = 4096,
        max_source_tokens: int | None = None,
        guard: bool = True,
        alignment_layer: int | None = None,
        precision: Precision = "float32",
        engine: OnnxModel | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self.bundle = bundle
        self.device = torch.device(device) if device else next(bundle.model.parameters()).device
        self.max_tokens = max_tokens
        self.guard = guard
        self.alignment_layer = alignment_layer
        self._asked_source_tokens = max_source_tokens
        accelerate(bundle.model.to(self.device).eval())
        choose_precision(precision, self.device)  # that what is not here is refused now
        slow = no_faster_form(bundle.model)
        if slow and precision not in ("auto", "float32"):
            raise ConfigError(f"precision {precision!r}: {slow}")
        if shortlist is not None and (slow or engine):
            raise ConfigError(f"a shortlist: {slow or 'a model in ONNX has its whole vocabulary in its graph'}")
        self._members = Members((Member(engine or bundle.model, precision, shortlist),))

    @classmethod
    def ensemble(cls, translators: Sequence[Translator]) -> Translator:
        """One translator out of several, whose probabilities are averaged; device and settings are the first's.

        Raises:
            ConfigError: There is none, or their tokenizers or languages differ.
        """
        if not translators:
            raise ConfigError("an ensemble of no models; give at least one")
        first = translators[0]
        if len(translators) > 1 and any(member.shortlist for one in translators for member in one._members.each):
            raise ConfigError("an ensemble averages over whole vocabularies; leave the shortlist out")
        for number, other in enumerate(translators[1:], start=2):
            for side in ("source", "target"):
                ours, theirs = (getattr(each.bundle, f"{side}_tokenizer") for each in (first, other))
                if ours.fingerprint != theirs.fingerprint:
                    raise ConfigError(
                        f"model {number} of the ensemble has another {side} tokenizer than the first "
                        f"({theirs.vocab_size} and {ours.vocab_size} tokens); only models that were trained with the "
                        "same one can be averaged"
                    )
            ours, theirs = _direction(first.bundle), _direction(other.bundle)
            if ours and theirs and ours != theirs:
                raise ConfigError(f"model {number} of the ensemble translates {theirs}, the first {ours}")
            if other.device != first.device:
                raise ConfigError(f"model {number} of the ensemble is on {other.device}, the first on {first.device}")
        joined = copy.copy(first)
        joined._members = Members(tuple(member for one in translators for member in one._members.each))
        return joined

    @property
    def max_source_tokens(self) -> int:
        """The length over which a text is split, in tokens with end symbol and language tag."""
        positions = self._members.positions
        asked = self._asked_source_tokens
        if asked is None:
            asked = self.bundle.model.max_length or DEFAULT_SOURCE_TOKENS
        return asked if positions is None else min(positions, asked)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The languages that a model with several can be asked for; empty for a model with one."""
        return self.bundle.framing.target_languages

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: DecodingOptions = PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> list[Translation | HeadwayError]:
        """See :meth:`TextTranslator.translate_each`."""
        frame = self.bundle.framing.frame(source_language=source_language, target_language=target_language)
        if alignment:
            alignment_module(self.bundle.model, self.alignment_layer)  # where there is none, before the search
        sources = [Source(text) if isinstance(text, str) else text for text in texts]
        task = self.bundle.task
        limits = Limits(
            self.max_source_tokens, options.max_length, self._members.positions, source_language or task.source_language
        )
        plans = [checked_plan(plan, options) for plan in plan_texts(sources, self.bundle, frame, limits)]
        work = Work(
            [job for plan in plans if isinstance(plan, Plan) for job in plan.jobs],
            options,
            frame,
            differ=_differ(source_language or task.source_language, target_language or task.target_language),
        )
        finder = Finder(self.bundle, self._members, self.max_tokens, self.guard, self.alignment_layer)
        found = finder.find(work)
        if alignment:
            finder.align(work, found)
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
            self._members.model,
            frame,
            sources,
            targets,
            positions=self._members.positions,
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
        members = self._members
        return next_tokens(self.bundle, members.model, frame, source, prefix, count=count, positions=members.positions)

    def words(self, candidate: Candidate) -> WordAlignment:
        """A candidate's alignment from word to word, where it has one."""
        if candidate.alignment is None:
            raise ConfigError("this candidate has no alignment; translate with alignment=True")
        joined = self.bundle.source_tokenizer.kind != "whitespace", self.bundle.target_tokenizer.kind != "whitespace"
        source_words, in_source = tokens_to_words(candidate.alignment.source_tokens, joined=joined[0])
        target_words, in_target = tokens_to_words(candidate.tokens, joined=joined[1])
        pairs = to_word_alignment(candidate.alignment.pairs, in_source, in_target)
        return WordAlignment(tuple(source_words), tuple(target_words), tuple(pairs))


def _joined_parts(plan: Plan, found: list[list[Candidate]]) -> Translation | HeadwayError:
    """The translation, or why there is none."""
    if all(found):
        return join_translation(plan, found)
    return ConfigError(
        "no target is left: banned phrases, min_length, no_repeat_ngram and the like exclude every one; ask for less"
    )


def _direction(bundle: Bundle) -> str | None:
    """From which language into which a model translates, if it says so and has one direction."""
    task = bundle.task
    told = _differ(task.source_language, task.target_language) and not bundle.framing.target_languages
    return f"{task.source_language} to {task.target_language}" if told else None


def _differ(source_language: str, target_language: str) -> bool:
    """Whether the languages are known to differ: those of a model that was not told are "source" and "target"."""
    return source_language != target_language and (source_language, target_language) != ("source", "target")


def load_translator(
    folder: str | Path,
    *,
    device: str | None = None,
    max_source_tokens: int | None = None,
    guard: bool = True,
    alignment_layer: int | None = None,
    precision: Precision = "auto",
    shortlist: bool = False,
) -> Translator:
    """The translation model in ``folder``, ready to translate; the other arguments are those of :class:`Translator`.

    A folder that was exported to ONNX runs in onnxruntime, on the CPU, in float32.

    Raises:
        BundleError: It is not a model folder, or a file in it is missing, damaged or foreign.
        ConfigError: A precision that is not here, or for an ONNX folder another than float32; or the folder has no
            shortlist, which ``shortlist`` asks for.
    """
    engine = OnnxModel.load(Path(folder)) if is_onnx_folder(Path(folder)) else None
    if engine is not None and precision not in ("auto", "float32"):
        raise ConfigError(f"precision {precision!r}: {folder} is an ONNX folder, which runs in float32; leave it out")
    bundle = Bundle.load(Path(folder))
    lists = read_shortlist(bundle, Path(folder)) if shortlist else None
    if shortlist and lists is None:
        raise ConfigError(
            f"{folder} has no shortlist; learn one from parallel text with "
            f"headway shortlist {folder} --source FILE --target FILE"
        )
    return Translator(
        bundle,
        device=device or ("cuda" if engine is None and torch.cuda.is_available() else "cpu"),
        max_source_tokens=max_source_tokens,
        guard=guard,
        alignment_layer=alignment_layer,
        precision=precision if engine is None else "float32",
        engine=engine,
        shortlist=lists,
    )
