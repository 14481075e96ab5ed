"""From what is asked to candidates: search, ask again, check, choose, align."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Hypothesis, Request, length_batches, search_all
from headway.errors import ConfigError
from headway.hardware import return_freed_memory
from headway.nn.attention_observer import attention_is_observed
from headway.predict.alignment import attention_maps, hard_alignment
from headway.predict.members import Members
from headway.predict.phrases import groups, holds_word, spelling_in
from headway.predict.planning import Job, is_possible
from headway.predict.quality import find_flags
from headway.predict.results import Candidate
from headway.text.framing import Frame
from headway.text.tokenizer import BOS, EOS, PAD, UNK

__all__ = ["Finder", "Found", "Work"]

_LOGITS_IN_MEMORY = 1 << 24  # of one decoding step: sentences x beam x vocabulary
_MANY = 512  # sentences, after which memory goes back to the system; of few that would take as long as they do
_RESPELLINGS = 4  # times that search is asked again because a banned phrase came in other tokens


@dataclass
class Work:
    """What is to be searched for in one call; ``differ``: whether source and target language do."""

    jobs: list[Job]
    options: DecodingOptions
    frame: Frame
    differ: bool


@dataclass(frozen=True)
class Found:
    """A candidate and the tokens that it was made of, those that the frame forces included."""

    tokens: tuple[int, ...]
    candidate: Candidate


@dataclass(frozen=True)
class Finder:
    """What finds candidates with some models; the fields are those of :class:`~headway.predict.Translator`."""

    bundle: Bundle
    members: Members
    max_tokens: int
    guard: bool
    alignment_layer: int | None

    def find(self, work: Work) -> list[list[Found]]:
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

    def _hypotheses(self, work: Work) -> list[list[Hypothesis]]:
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

    def _chosen(self, work: Work, job: Job, hypotheses: Sequence[Hypothesis]) -> list[Found]:
        """The best, with the guard on the best that is sound, and the others in their order."""
        if not hypotheses:
            return []
        best = self._found(work, job, hypotheses[0])
        if not (self.guard and best.candidate.flags):
            return [best, *(self._found(work, job, each) for each in hypotheses[1 : work.options.n_best])]
        every = [best, *(self._found(work, job, each) for each in hypotheses[1:])]
        sound = next((each for each in every if _is_sound(each.candidate, best.candidate)), None)
        if sound is not None:
            fallen = Found(sound.tokens, replace(sound.candidate, flags=("fell_back",)))
            every = [fallen, *(each for each in every if each is not sound)]
        return every[: work.options.n_best]

    def _found(self, work: Work, job: Job, hypothesis: Hypothesis) -> Found:
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
        return Found(hypothesis.tokens, candidate)

    def align(self, work: Work, found: list[list[Found]]) -> None:
        """Give every candidate its alignment."""
        tokenizer, frame = self.bundle.source_tokenizer, work.frame
        places = [(row, place) for row, candidates in enumerate(found) for place in range(len(candidates))]
        sources = [work.jobs[row].request.source for row, _ in places]
        for batch in length_batches(sources, self.max_tokens, self.max_tokens):
            targets = [found[row][place].tokens for row, place in (places[index] for index in batch)]
            maps = attention_maps(
                self.bundle.model, [sources[index] for index in batch], targets, bos=BOS, layer=self.alignment_layer
            )
            for index, attention in zip(batch, maps, strict=True):
                row, place = places[index]
                ids, start = work.jobs[row].ids, len(frame.source_prefix)
                own = attention[len(frame.target_prefix) :, start : start + len(ids)]
                alignment = hard_alignment(own, tokenizer.display(ids))
                each = found[row][place]
                found[row][place] = Found(each.tokens, replace(each.candidate, alignment=alignment))

    def _search(self, requests: Sequence[Request], options: DecodingOptions) -> list[list[Hypothesis]]:
        """The hypotheses of each request, best first, found in batches of like length; none where rules forbid all."""
        if options.coverage_penalty and any(member.shortlist for member in self.members.each):
            raise ConfigError("a coverage penalty is computed by the model as it was trained; leave the shortlist out")
        # Only the model itself can return or show its attention.
        plain = options.coverage_penalty or attention_is_observed()
        model = self.members.model if plain else self.members.searcher
        tokenizer = self.bundle.target_tokenizer
        rows = max(options.beam_size, options.n_best)
        if options.beam_size > tokenizer.vocab_size:
            raise ConfigError(
                f"beam size {options.beam_size}: expected from 1 (greedy search) to {tokenizer.vocab_size}, the size "
                "of the vocabulary; the paper uses 4"
            )
        found = search_all(
            model,
            requests,
            options,
            bos=BOS,
            eos=EOS,
            banned=(PAD, BOS, UNK, *(tokenizer.tag_id(tag) for tag in tokenizer.tags)),
            max_tokens=self.max_tokens,
            max_sequences=max(1, _LOGITS_IN_MEMORY // (rows * tokenizer.vocab_size)),
        )
        if len(requests) > _MANY:
            return_freed_memory()  # of which batches of many shapes have left pieces
        return found


def _flagged(found: Sequence[Found]) -> bool:
    """Whether the guard has found nothing better than a flagged candidate."""
    return bool(set(found[0].candidate.flags) - {"fell_back"})


def _is_sound(candidate: Candidate, best: Candidate) -> bool:
    """Whether it is not flagged, and fails no phrase that the most probable one does not fail."""
    failed = {*best.unmet, *best.banned}
    return not candidate.flags and failed.issuperset((*candidate.unmet, *candidate.banned))
