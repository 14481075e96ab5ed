"""The search whose steps can be recorded, against the search that looks at every step.

No GPU is needed: the operations are the same on a processor, where they are not recorded. What recording asks of them
is tested by a recorder that notes what a call did to which memory, and repeats exactly that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import BEGIN, END, PAD, assert_same, sentences, tiny_transformer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.decode import DecodingOptions, Hypothesis, Request, search
from headway.decode.recording import Recorder
from headway.decode.static import Programs, _round, is_static, static_search
from headway.errors import BundleError, ConfigError, LengthError
from headway.inference import InferenceTransformer
from headway.models.transformer import Transformer, TransformerConfig

FORBIDDEN = (PAD, BEGIN)


def both(
    engine: InferenceTransformer, requests: list[Request], **options: Any
) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    parsed = DecodingOptions.parse(options, "test")
    symbols: dict[str, Any] = {"begin": BEGIN, "end": END, "forbidden": FORBIDDEN}
    return static_search(engine, requests, parsed, **symbols), search(engine, requests, parsed, **symbols)


@pytest.fixture(scope="module")
def engine() -> InferenceTransformer:
    return InferenceTransformer(tiny_transformer(), end=END)


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
@settings(derandomize=True, max_examples=60)
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
    torch.manual_seed(5)
    config = TransformerConfig.preset("tiny", **{"d_model": 32, "num_heads": 4, "d_ff": 48, **changes})
    engine = InferenceTransformer(Transformer(config, 150, 150).eval(), end=END)
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
    _aten.item.default,
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
        self.seen: set[Hashable] = set()
        self.recordings: dict[Hashable, Recording] = {}
        self.repeated = 0

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        if key in self.recordings:
            self.repeated += 1
            self.recordings[key].repeat()
        elif key in self.seen:
            self.recordings[key] = Recording()
            with self.recordings[key]:
                function()
        else:
            self.seen.add(key)
            function()


@pytest.mark.parametrize(("beam_size", "stopping"), [(1, "exact"), (4, "exact"), (3, "first")])
def test_recorded_steps_repeated_find_the_same_in_any_batch(beam_size: int, stopping: str) -> None:
    engine = InferenceTransformer(tiny_transformer(seed=11), end=END)
    engine.programs._recorder = recorder = NotingRecorder()
    for seed in range(5):
        # Seven and eight sentences are one shape, so the last batches repeat only what the first ones did.
        requests = sentences(7 + seed % 2, seed)
        found, expected = both(engine, requests, beam_size=beam_size, stopping=stopping)
        assert len({beam[0].tokens for beam in found}) > 2, "too alike to tell anything"
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs, 1e-5)
    assert len(recorder.recordings) == 2, "a start and a step"
    assert recorder.repeated > 20


def test_shapes_are_few_and_programs_are_kept(engine: InferenceTransformer) -> None:
    engine.programs = Programs()
    for count in (5, 6, 5):
        both(engine, sentences(count), beam_size=2)
    assert len(engine.programs._kept) == 1
    both(engine, sentences(7), beam_size=2)
    assert len(engine.programs._kept) == 2
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
