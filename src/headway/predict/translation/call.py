"""One call to a translator: plan search requests, find candidates, align them, and merge the parts of each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from headway.decode import length_batches
from headway.errors import HeadwayError
from headway.models.base import TranslationModel
from headway.predict.results import Alignment, Candidate, Translation
from headway.predict.translation.alignment import attention_maps, hard_alignment
from headway.predict.translation.calibration import Calibration
from headway.predict.translation.find_candidates import CandidateFinder
from headway.predict.translation.marked_translation import TranslationUnit
from headway.predict.translation.plan import CallSettings, PartRequest, RequestBuilder, TranslationPlan, merge_parts
from headway.text.normalization import original_pieces


@dataclass(frozen=True, kw_only=True)
class TranslationCall:
    """Translates the texts in one call. The texts contain no markup or placeholders that must be kept.

    Attributes:
        settings: The model, and the options that were resolved for it.
        finder: Finds candidates for search requests.
        alignment_model: Returns the model that computes alignments. Called only if a text needs an alignment.
        alignment_layer: The decoder block whose attention gives alignments; see
            :func:`headway.predict.translation.alignment.alignment_module`.
        max_attention: Maximum total number of attention weights in the alignments of all texts. The best candidate of
            each text has priority over the others. None means no limit.
        calibration: The distribution from which the flag ``unlikely`` is computed. None means that the flag is not set.
    """

    settings: CallSettings
    finder: CandidateFinder
    alignment_model: Callable[[], TranslationModel]
    alignment_layer: int | None
    max_attention: int | None
    calibration: Calibration | None

    def translate(self, units: Sequence[TranslationUnit]) -> list[Translation | HeadwayError]:
        """Return the translation of each text, or an error if the text cannot be translated."""
        plans = RequestBuilder(self.settings).plan_each([unit.source for unit in units])
        counts = [len(plan.requests) if isinstance(plan, TranslationPlan) else 0 for plan in plans]
        parts = [part for plan in plans if isinstance(plan, TranslationPlan) for part in plan.requests]
        needs_alignment = [
            unit.needs_alignment for unit, count in zip(units, counts, strict=True) for _ in range(count)
        ]
        candidates = self.finder.find(parts)
        if True in needs_alignment:
            candidates = self._align(parts, candidates, needs_alignment)
        remaining = iter(candidates)
        return [
            plan if isinstance(plan, HeadwayError) else self._merge(plan, list(islice(remaining, count)))
            for plan, count in zip(plans, counts, strict=True)
        ]

    def _align(
        self,
        parts: Sequence[PartRequest],
        candidates: Sequence[Sequence[Candidate]],
        needs_alignment: Sequence[bool],
    ) -> list[list[Candidate]]:
        """Return the candidates for each part, with alignments where they are needed."""
        model, settings, special = self.alignment_model(), self.settings, self.settings.special_tokens
        ranked = [
            (rank, part, candidate)
            for part, of_part, needed in zip(parts, candidates, needs_alignment, strict=True)
            if needed
            for rank, candidate in enumerate(of_part)
        ]
        pairs = [(part, candidate) for _, part, candidate in ranked]
        keeping = self._keeping_attention([(rank, len(part.source_ids) * len(one.ids)) for rank, part, one in ranked])
        longer = [max(part.request.source, candidate.ids, key=len) for part, candidate in pairs]
        alignments: dict[int, Alignment] = {}
        for batch in length_batches(longer, settings.max_batch_tokens, settings.max_batch_tokens):
            sources = [pairs[index][0].request.source for index in batch]
            targets = [[*special.target_prefix, *pairs[index][1].ids] for index in batch]
            maps = attention_maps(model, sources, targets, layer=self.alignment_layer)
            for index, attention in zip(batch, maps, strict=True):
                ids, start = pairs[index][0].source_ids, len(special.source_prefix)
                attention = attention[len(special.target_prefix) :, start : start + len(ids)]
                source_tokens = self._source_tokens(pairs[index][0])
                alignments[index] = hard_alignment(attention, source_tokens, keep_attention=index in keeping)
        aligned = iter(replace(pair[1], alignment=alignments[index]) for index, pair in enumerate(pairs))
        return [
            [next(aligned) for _ in of_part] if needed else list(of_part)
            for of_part, needed in zip(candidates, needs_alignment, strict=True)
        ]

    def _keeping_attention(self, sizes: Sequence[tuple[int, int]]) -> set[int]:
        """Return the indices of the alignments that keep their attention, given each alignment's rank and size."""
        if self.max_attention is None:
            return set(range(len(sizes)))
        keeping, used = set[int](), 0
        for index in sorted(range(len(sizes)), key=lambda index: sizes[index][0]):
            if used + sizes[index][1] <= self.max_attention:
                keeping.add(index)
                used += sizes[index][1]
        return keeping

    def _source_tokens(self, part: PartRequest) -> Sequence[str]:
        """Return the source tokens as displayed, in the spelling of the original text, before any normalization.

        These tokens concatenate to the text, so that positions in the text can be computed from them.
        """
        text, bundle = part.source.text, self.settings.bundle
        tokens = bundle.source_tokenizer.display(part.source_ids)
        return tokens if bundle.normalized(text) == text else original_pieces(text, tokens)

    def _merge(self, plan: TranslationPlan, candidates: Sequence[Sequence[Candidate]]) -> Translation | HeadwayError:
        unlikely = None if self.calibration is None else self._is_unlikely(self.calibration, plan, candidates)
        return merge_parts(plan, candidates, unlikely)

    def _is_unlikely(
        self, calibration: Calibration, plan: TranslationPlan, candidates: Sequence[Sequence[Candidate]]
    ) -> bool:
        """Return whether a part of a text is unlike the calibration set.

        Sampled or forced tokens are improbable in any domain, so only the source is used in these cases.
        """
        sampled = self.settings.decoding.sampling is not None
        return any(
            calibration.is_unlikely(
                self.settings.bundle.normalized(part.source.text),
                part.source_ids,
                ()
                if sampled or part.source.prefix.strip() or part.request.include
                else of_part[0].token_log_probabilities,
            )
            for part, of_part in zip(plan.requests, candidates, strict=True)
            if of_part
        )
