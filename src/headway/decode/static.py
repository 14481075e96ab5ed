"""Beam search in which every step is the same operations on the same memory, so that a GPU repeats a recording.

The search of :class:`~headway.decode.beam.BeamSearch`, for one plain beam: same scores, same rules to stop, same
hypotheses. There the host reads the scores of every step, to know who is finished; here the device keeps that, too,
the host learns it some steps later (:class:`~headway.decode.recording.Watch`), and reads what was found once, at the
end (:mod:`headway.decode.program`). All sentences of a batch start and end together.

Shapes are few: batches are filled up with empty sentences, sources with padding, lengths are rounded up. Each shape is
a program, which is kept with the model. The memory of the steps' intermediate results is shared by all; the programs'
own together may be a quarter of the device's, and what was not used for longest is dropped first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Event, Lock
from typing import TypeGuard

import torch

from headway.decode.options import DecodingOptions
from headway.decode.program import Plan, Program, Shape
from headway.decode.protocol import Hypothesis, StaticModel, device_of
from headway.decode.recording import Recorder
from headway.decode.request import Request, check_request, limit_of

__all__ = ["Programs", "is_static", "static_search"]

_SHORTEST_SOURCE = 16  # tokens
_FEWEST_STEPS = 32
_MOST_SLOTS = 1 << 18  # rows x steps; beyond, memory that grows as it is needed is better than all that may be
_MOST_PROGRAMS = 64
_SHARE = 4  # programs may hold one part in so many of the device's memory


def is_static(model: object, options: DecodingOptions, requests: Sequence[Request]) -> TypeGuard[StaticModel]:
    """Whether :func:`static_search` can answer these requests, and does it faster than other searches."""
    return (
        getattr(model, "static", False)
        and options.sampling is None
        and options.groups == 1
        and options.coverage_penalty == 0
        and options.repetition_penalty == 1
        and options.no_repeat_ngram == 0
        and not any(request.include or request.banned for request in requests)
        and options.beam_size * len(requests) * _most_steps(requests, options) <= _MOST_SLOTS
    )


def _most_steps(requests: Sequence[Request], options: DecodingOptions) -> int:
    return 1 + max((limit_of(request, options) for request in requests), default=0)


def static_search(
    model: StaticModel,
    requests: Sequence[Request],
    options: DecodingOptions,
    *,
    begin: int,
    end: int,
    forbidden: Sequence[int] = (),
    stop: Event | None = None,
) -> list[list[Hypothesis]]:
    """See :func:`~headway.decode.search.search`; for what :func:`is_static` allows.

    A limit beyond a model's learned positions is refused at once, not only where a target gets there.
    """
    for request in requests:
        check_request(request, options, end)
    if not requests:
        return []
    most = model.max_length
    longest, steps = max(len(request.source) for request in requests), _most_steps(requests, options)
    shape = Shape(
        sentences=_round(len(requests)),
        source=_within(max(_SHORTEST_SOURCE, _round(longest)), longest, most),
        steps=_within(max(_FEWEST_STEPS, _round(steps)), steps, most),
    )
    plan = Plan(
        options.beam_size, options.n_best, options.stopping == "exact", begin, end, tuple(dict.fromkeys(forbidden))
    )
    programs: Programs = model.programs
    with programs.lock, torch.inference_mode():
        return programs.get(model, shape, plan).search(model, requests, options, stop)


def _round(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on that is not below."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


def _within(rounded: int, needed: int, most: int | None) -> int:
    return rounded if most is None else max(needed, min(rounded, most))


class Programs:
    """The programs of one model, of which one runs at a time; who runs one holds ``lock``."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._recorder: Recorder | None = None
        self._kept: dict[tuple[Shape, Plan], Program] = {}  # the one used last at the end

    def get(self, model: StaticModel, shape: Shape, plan: Plan) -> Program:
        """The program, made where there is none."""
        program = self._kept.pop((shape, plan), None) or self._make(model, shape, plan)
        self._kept[shape, plan] = program
        return program

    def _make(self, model: StaticModel, shape: Shape, plan: Plan) -> Program:
        device = device_of(model)
        self._recorder = recorder = self._recorder or Recorder(device)
        try:
            program = Program(model, shape, plan, recorder, device)
        except torch.cuda.OutOfMemoryError:
            self._kept.clear()
            program = Program(model, shape, plan, recorder, device)
        most = math.inf
        if device.type == "cuda":
            most = torch.cuda.get_device_properties(device).total_memory / _SHARE
        self._drop(_MOST_PROGRAMS - 1, most - program.num_bytes)
        return program

    def _drop(self, count: int, num_bytes: float) -> None:
        """Keep no more programs, and no more of their memory."""
        while self._kept and (len(self._kept) > count or sum(one.num_bytes for one in self._kept.values()) > num_bytes):
            del self._kept[next(iter(self._kept))]
