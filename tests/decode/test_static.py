"""The search whose steps can be recorded, against the search that looks at every step.

No GPU is needed: the operations are the same on a processor, where they are not recorded. What recording asks of them
is tested by a recorder that notes what a call did to which memory, and repeats exactly that.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError
from threading import Event
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import BEGIN, END, PAD, assert_same, sentences, tiny_transformer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway import kernels
from headway.decode import DecodingOptions, Hypothesis, Request, recording, search
from headway.decode.recording import Recorder, Recordings, Watch
from headway.decode.static import Programs, _round, is_static, static_search
from headway.engine import InferenceTransformer
from headway.errors import BundleError, ConfigError, LengthError
from headway.models.transformer import Transformer, TransformerConfig

FORBIDDEN = (PAD, BEGIN)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only PyTorch's operations, which can be noted."""
    monkeypatch.setattr(kernels, "available", lambda: False)


def both(
    engine: InferenceTransformer, requests: list[Request], **options: Any
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    parsed = DecodingOptions.parse(options, "test")
    symbols: dict[str, Any] = {"begin": BEGIN, "end": END, "forbidden": FORBIDDEN}
    return static_search(engine, requests, parsed, **symbols), search(engine, requests, parsed, **symbols)


def made(**changes: Any) -> InferenceTransformer:
    torch.manual_seed(5)
    config = TransformerConfig.preset("tiny", **{"d_model": 32, "num_heads": 4, "d_ff": 48, **changes})
    model = Transformer(config, 150, 150).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return InferenceTransformer(model, end=END)


@pytest.fixture(scope="module")
def engine() -> InferenceTransformer:
    return made()


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 9),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    normalization=st.sampled_from(["gnmt", "average"]),
    stopping=st.sampled_from(["exact", "first"]),
    prefix=st.sampled_from([(), (), (5,), (3, 4)]),
    data=st.data(),
)
@settings(derandomize=True, max_examples=60)  # near-ties, one in many thousands, fall differently in float32
def test_finds_what_the_ordinary_search_finds(
    engine: InferenceTransformer,
    seed: int,
    count: int,
    beam_size: int,
    alpha: float,
    normalization: str,
    stopping: str,
    prefix: tuple[int, ...],
    data: st.DataObject,
) -> None:
    requests = [
        Request(source=one.source, limit=one.limit, prefix=prefix if at % 2 and len(prefix) <= one.limit else ())
        for at, one in enumerate(sentences(count, seed))
    ]
    found, expected = both(
        *(engine, requests),
        beam_size=beam_size,
        n_best=data.draw(st.integers(1, beam_size)),
        length_penalty=alpha,
        normalization=normalization,
        stopping=stopping,
        min_length=data.draw(st.integers(0, min(one.limit for one in requests))),
    )
    assert [bool(one) for one in found] == [True] * count
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs, 1e-5)


VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm, gated": {"norm": "pre", "activation": "swiglu"},
    "learned positions": {"positions": "learned", "max_length": 52, "output_bias": True, "tie": "none"},
    "rotary": {"positions": "rotary", "d_key": 6},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("beam_size", [1, 4])
def test_long_targets_pass_from_one_reach_to_the_next(changes: dict[str, Any], beam_size: int) -> None:
    engine = made(**changes)
    requests = [Request(source=(*range(5, 5 + length), END), limit=50) for length in (7, 3, 30)]
    found, expected = both(engine, requests, beam_size=beam_size, min_length=45)
    assert all(len(beam[0].tokens) >= 45 for beam in found)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


_aten = torch.ops.aten
# What makes the host wait, or gives a result whose shape depends on the data, or comes from the host.
_NOT_RECORDED = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.unique_dim.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.lift_fresh.default,
}


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation with the tensors that it was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in _NOT_RECORDED, f"{func} cannot be in a CUDA graph"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def repeat(self) -> None:
        """The same operations on the same memory, as a CUDA graph does: results go where the first ones went."""
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            old, new = (torch.utils._pytree.tree_leaves(x) for x in (out, again))
            for mine, theirs in zip(old, new, strict=True):
                if not isinstance(mine, Tensor):
                    assert mine == theirs, f"{func} tells the host {mine}, then {theirs}"
                elif mine.data_ptr() != theirs.data_ptr():  # a new tensor, and no view or change of another
                    assert mine.shape == theirs.shape
                    mine.copy_(theirs)


class NotingRecorder(Recorder):
    """Records on a processor: the second call of a function is what it repeats."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.recordings: dict[Hashable, Recording] = {}
        self.repeated: set[Hashable] = set()

    def run(self, recordings: Recordings, key: Hashable, function: Callable[[], object]) -> None:
        if key in self.recordings:
            self.repeated.add(key)
            self.recordings[key].repeat()
        elif key in recordings:
            self.recordings[key] = Recording()
            with self.recordings[key]:
                function()
        else:
            recordings[key] = None
            function()


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize(("beam_size", "stopping"), [(1, "exact"), (4, "exact"), (3, "first")])
def test_recorded_steps_repeated_find_the_same_in_any_batch(
    changes: dict[str, Any], beam_size: int, stopping: str
) -> None:
    engine = made(**changes)
    engine.programs._recorder = recorder = NotingRecorder()
    generator = torch.Generator().manual_seed(3)
    distinct = set()
    for count in (7, 8, 7, 8):  # one shape, so the last batches repeat only what the first ones did
        lengths = torch.randint(3, 30, (count,), generator=generator).tolist()
        requests = [
            Request(
                source=(*torch.randint(5, 150, (length,), generator=generator).tolist(), END),
                limit=limit,
                prefix=(9, 11)[: at % 3],
            )
            for at, (length, limit) in enumerate(zip(lengths, [48, *lengths[1:]], strict=True))
        ]
        found, expected = both(engine, requests, beam_size=beam_size, stopping=stopping, min_length=3)
        distinct |= {beam[0].tokens for beam in found}
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs)
    assert len(distinct) > 20, "too alike to tell anything"
    # Steps that look at the slots of 32 steps, before and after targets may end, and of more.
    assert {"start", (32, True), (32, False)} < recorder.repeated
    assert len(recorder.repeated) == 4


def test_a_table_of_positions_that_was_recorded_stays() -> None:
    engine = made()
    engine.programs._recorder = NotingRecorder()
    requests = [Request(source=(7, 9, END), limit=20)]
    both(engine, requests, beam_size=2)
    table = weakref.ref(engine._model.target_positions.table)
    for length in (300, 600):  # longer tables take its place
        search(engine, [Request(source=(7, END), limit=length)], DecodingOptions(min_length=length), begin=1, end=END)
    assert engine._model.target_positions.table is not table()
    assert table() is not None
    found, expected = both(engine, requests, beam_size=2)
    assert_same(found[0], expected[0])


def test_who_drops_the_model_frees_its_memory() -> None:
    gc.disable()
    try:
        engine = made()
        both(engine, [Request(source=(7, 9, END), limit=20)], beam_size=2)
        gone = weakref.ref(engine)
        del engine
        assert gone() is None
    finally:
        gc.enable()


class Later:
    """A flag that arrives so many looks after it was sent."""

    sent: ClassVar[list[Later]] = []
    looks = 0

    def __init__(self, flag: Tensor) -> None:
        self.flag, self.waited, self.number = bool(flag), False, len(self.sent)
        self.sent.append(self)

    def is_there(self) -> bool:
        return self.number + self.looks < len(self.sent)

    def value(self) -> bool:
        self.waited = not self.is_there()
        return self.flag


@pytest.mark.parametrize("looks", [0, 3, 100])
def test_the_end_is_learned_later_and_never_missed(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    monkeypatch.setattr(recording, "_Sent", Later)
    monkeypatch.setattr(Later, "looks", looks)
    monkeypatch.setattr(Later, "sent", [])
    flag = torch.zeros(1, dtype=torch.bool)
    watch = Watch(flag)
    for number in range(40):
        flag.fill_(number >= 20)
        if watch.step():
            break
    assert number == 20 + min(looks, 8)
    assert any(one.waited for one in Later.sent) == (looks > 8)
    engine = made()
    found, expected = both(engine, [Request(source=(7, 9, END), limit=20)] * 3, beam_size=2)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def test_shapes_are_few_and_programs_are_kept(engine: InferenceTransformer) -> None:
    engine.programs = Programs()
    for count in (5, 6, 5):
        both(engine, sentences(count), beam_size=2)
    assert len(engine.programs._kept) == 1
    both(engine, sentences(7), beam_size=2)
    assert len(engine.programs._kept) == 2
    programs = engine.programs
    programs._drop(count=1, num_bytes=math.inf)
    assert [shape.sentences for shape, _ in programs._kept] == [8], "the one used last"
    programs._drop(count=1, num_bytes=0.0)
    assert not programs._kept
    rounded = [_round(count) for count in range(1, 200)]
    assert all(count <= size < 1.51 * count for count, size in enumerate(rounded, start=1))
    assert len(set(rounded)) == 16


def test_a_batch_of_one_and_no_batch(engine: InferenceTransformer) -> None:
    options = DecodingOptions.parse({"beam_size": 4}, "test")
    assert static_search(engine, [], options, begin=BEGIN, end=END) == []
    found, expected = both(engine, [Request(source=(END,), limit=0)], beam_size=4)
    assert_same(found[0], expected[0])
    assert found[0][0].tokens == ()


def test_what_is_for_the_ordinary_search() -> None:
    class OnDevice:
        static = True

    plain = Request(source=(END,), limit=3)

    def asks(request: Request = plain, **options: Any) -> bool:
        return is_static(OnDevice(), DecodingOptions.parse(options, "test"), [request])

    assert asks()
    assert asks(beam_size=1, min_length=3, n_best=1)
    assert not is_static(tiny_transformer(), DecodingOptions(), [])
    assert not asks(sampling={})
    assert not asks(groups=2)
    assert not asks(coverage_penalty=0.2)
    assert not asks(repetition_penalty=1.2)
    assert not asks(no_repeat_ngram=3)
    assert not asks(Request(source=(END,), limit=1 << 18))
    assert not asks(Request(source=(END,), limit=3, banned=((4,),)))
    assert not asks(Request(source=(END,), limit=3, include=(((4,),),)))


def test_search_takes_it_where_the_model_prefers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InferenceTransformer(tiny_transformer(), end=END)
    assert not engine.static, "on a processor"
    monkeypatch.setattr(InferenceTransformer, "static", True)
    search(engine, sentences(2), DecodingOptions(), begin=BEGIN, end=END)
    assert engine.programs._kept


def test_errors(engine: InferenceTransformer) -> None:
    options = DecodingOptions.parse({"beam_size": 2}, "test")
    with pytest.raises(ConfigError, match="no tokens"):
        static_search(engine, [Request(source=(), limit=3)], options, begin=BEGIN, end=END)
    stop = Event()
    stop.set()
    with pytest.raises(CancelledError):
        static_search(engine, [Request(source=(5, END), limit=9)], options, begin=BEGIN, end=END, stop=stop)
    found, expected = both(engine, sentences(1), beam_size=2)  # by the same program
    assert_same(found[0], expected[0])
    damaged = tiny_transformer()
    with torch.no_grad():
        next(iter(damaged.decoder.parameters())).fill_(torch.nan)
    with pytest.raises(BundleError, match="damaged"):
        both(InferenceTransformer(damaged, end=END), sentences(2), beam_size=2)
    learned = TransformerConfig.preset("tiny", positions="learned", max_length=10, tie="target")
    short = InferenceTransformer(Transformer(learned, 12, 8).eval(), end=END)
    found, expected = both(short, [Request(source=(5, END), limit=9)], beam_size=2)
    assert_same(found[0], expected[0])
    for source, limit in itertools.product([(5, END), (*[5] * 10, END)], [9, 10]):
        if (source, limit) != ((5, END), 9):
            with pytest.raises(LengthError, match="10 positions"):
                static_search(short, [Request(source=source, limit=limit)], options, begin=BEGIN, end=END)
