"""ONNX folders: onnxruntime and PyTorch compute the same results."""

from __future__ import annotations

import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from continuous_batching import decode_continuously
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions, Ensemble, Request, Sampling, SearchVocabulary, Step, score_targets, search
from headway.errors import BundleError, ConfigError, LengthError, MissingPackageError
from headway.interop.onnx import DECODER_STEP_FILE, OnnxModel, OnnxState, export
from headway.models.transformer import Transformer, TransformerConfig
from headway.predict import Translator, load_translator
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.tokenizer import Tokenizer, TokenizerConfig

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "activation": "gelu", "d_key": 3, "d_value": 5, "tie": "target"},
    {"positions": "learned", "max_length": 12, "activation": "silu", "encoder_layers": 1, "tie": "none"},
    {"activation": "glu", "num_heads": 4, "decoder_layers": 3, "sinusoid_layout": "halves", "position_offset": 2},
    {"activation": "reglu", "norm": "pre", "output_bias": True, "sinusoid_spacing": "inclusive", "d_ff": 8},
    {"activation": "geglu", "scale_embedding": False, "embedding_norm": True, "tie": "none", "output_bias": True},
    {"activation": "swiglu", "positions": "learned", "max_length": 9, "embedding_norm": True, "d_model": 6},
    {"positions": "none", "norm": "none"},
    {"residual": False, "norm": "pre"},
    {"residual": False},
    {"positions": "rotary", "norm": "pre", "norm_kind": "rms", "num_heads": 4, "num_kv_heads": 2, "bias": "none"},
    {"positions": "rotary", "rotary_fraction": 0.5, "qk_norm": True, "num_kv_heads": 1, "bias": "qkv"},
    {"encoder_window": 3, "decoder_window": 2, "activation": "gelu_tanh"},
    {"encoder_window": 4, "decoder_window": 1, "positions": "rotary", "num_kv_heads": 1, "activation": "geglu"},
]
REFUSED: dict[str, set[str]] = {  # the values of each option that the graphs do not support
    "score": {"dot", "additive", "general", "cosine", "feed_forward"},
    "qk_projection": {"hidden"},
}
RULED_OUT = (PAD, BOS, UNK)
SEARCHED = SearchVocabulary(BOS, EOS, banned=RULED_OUT)


def made(source: str = "abcdefgh", target: str = "abcdefgh", **changes: Any) -> Bundle:
    """Return a model with weights so large that its choices are clear and different sentences differ."""
    one, other = (Tokenizer.train([text], TokenizerConfig(kind="characters")) for text in (source, target))
    model = Transformer(TransformerConfig.parse({**SMALL, **changes}, "test"), one.vocab_size, other.vocab_size)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 1.0))
    return Bundle(TaskConfig(source_language="de", target_language="en"), model.eval(), one, other)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return made()


@pytest.fixture(scope="module")
def exported(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "model"
    export(bundle, folder, max_length=64)
    return folder


@pytest.fixture(scope="module")
def model(exported: Path) -> OnnxModel:
    return OnnxModel.load(exported)


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy that a test damages."""
    return Path(shutil.copytree(exported, tmp_path / "model"))


def sources(draws: random.Random, count: int, vocab_size: int, longest: int = 8) -> Tensor:
    """Return padded sentences of different lengths that end in EOS; the first one has the maximum length."""
    lengths = [longest, *(draws.randint(1, longest) for _ in range(count - 1))]
    rows = [[*draws.choices(range(4, vocab_size), k=length - 1), EOS] for length in lengths]
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


# The graphs compute the same results as the model.


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("changes", OPTIONS, ids=str)
@torch.no_grad()
def test_logits_of_padded_batches(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = made("abcdefgh", "abcdefgh" if changes.get("tie", "all") == "all" else "abcde", **changes)
    export(bundle, tmp_path / "model")
    loaded = OnnxModel.load(tmp_path / "model")
    source = sources(random.Random(1), 5, bundle.source_tokenizer.vocab_size)
    target = torch.randint(1, bundle.target_tokenizer.vocab_size, (5, 6))
    expected = bundle.model(source, target)
    assert expected.std() > 1
    unit = max(1.0, float(expected.std()) / 10)  # without norms, values grow
    assert_close(loaded(source, target) / unit, expected / unit)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([[EOS]], [[BOS]]),
        ([[4, EOS]], [[BOS, 5, 6, 4, 5, 6, 4, 4]]),
        ([[4, 5, 6, 7, 8, 9, 4, EOS]], [[BOS]]),
        ([[EOS], [EOS], [EOS]], [[BOS, 4], [4, 5], [5, 6]]),
        ([[4, 5, EOS], [PAD, PAD, PAD], [PAD, 4, EOS]], [[BOS, 4], [BOS, 4], [BOS, 4]]),  # one row that is all padding
    ],
)
@torch.no_grad()
def test_odd_shapes(bundle: Bundle, model: OnnxModel, source: list[list[int]], target: list[list[int]]) -> None:
    given = torch.tensor(source), torch.tensor(target)
    found = model(*given)
    assert found.isfinite().all()
    assert_close(found, bundle.model(*given))


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "decoder_window": 3, "num_kv_heads": 1}], ids=str)
@torch.no_grad()
def test_selected_and_joined_states_go_on_as_the_models_own(changes: dict[str, Any], tmp_path: Path) -> None:
    """Two states per engine go through the same random operations: step, select, drop sentences, join new ones."""
    bundle, draws = made(**changes), random.Random(2)
    export(bundle, tmp_path / "model", max_length=64)
    model = OnnxModel.load(tmp_path / "model")
    vocab_size = bundle.source_tokenizer.vocab_size

    engines: list[Any] = [bundle.model, model]

    def drawn(count: int) -> list[list[int]]:
        rows = sources(draws, count, vocab_size, draws.randint(1, 7)).tolist()
        return [[token for token in row if token != PAD] for row in rows]

    first = drawn(3)
    states, beams = [engine.start(first) for engine in engines], 1
    joins = 0
    for step in range(40):
        rows = len(states[1].positions)
        tokens = torch.tensor(draws.choices(range(1, vocab_size), k=rows))
        assert_close(*(engine.step(state, tokens).logits() for engine, state in zip(engines, states, strict=True)))
        sentences = list(range(rows // beams))
        kept = draws.sample(sentences, draws.randint(1, len(sentences))) if step % 3 == 0 else sentences
        width = draws.randint(1, 3)
        chosen = torch.tensor([sentence * beams + draws.randrange(beams) for sentence in kept for _ in range(width)])
        for engine, state in zip(engines, states, strict=True):
            engine.reorder_rows(state, chosen, torch.tensor(kept) if step % 3 == 0 else None)
        if step % 3 == 0:
            assert states[1].length == states[1].positions.max()  # no positions of sentences that left remain
        beams = width
        if step % 4 == 0 and len(kept) < 6:
            newer = drawn(draws.randint(1, 3))
            for engine, state in zip(engines, states, strict=True):
                engine.admit(state, newer)
            joins += 1
        assert torch.equal(states[1].positions, states[0].prefix_kv.lengths.repeat_interleave(beams))
    assert joins > 5


def test_the_beams_of_a_sentence_share_its_memory(model: OnnxModel) -> None:
    state = model.start([[4, 5, EOS], [6, EOS]])
    before = [tensor.data_ptr() for tensor in state.memory_kv]
    model.reorder_rows(state, torch.arange(2).repeat_interleave(4))
    assert model.step(state, torch.full((8,), BOS)).logits().size(0) == 8
    assert [tensor.data_ptr() for tensor in state.memory_kv] == before
    assert {tensor.size(0) for tensor in state.memory_kv} == {2}
    assert {tuple(tensor.shape[:3]) for tensor in state.prefix_kv} == {(8, 2, 1)}


# Every search runs with it.


def requests(count: int) -> list[Request]:
    draws = random.Random(5)
    return [
        Request(source=(*draws.choices(range(4, 12), k=draws.randint(1, 9)), EOS), limit=draws.randint(3, 12), seed=i)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(beam_size=1),
        DecodingOptions(beam_size=4, n_best=4),
        DecodingOptions(beam_size=4, n_best=2, normalization="average", stopping="first", no_repeat_ngram=2),
        DecodingOptions(beam_size=4, n_best=2, groups=2),
        DecodingOptions(n_best=2, sampling=Sampling(temperature=1.5, top_k=6)),
    ],
    ids=["greedy", "beam", "rules", "groups", "sampling"],
)
def test_searches_find_the_same(bundle: Bundle, model: OnnxModel, options: DecodingOptions) -> None:
    asked = requests(12)
    expected = search(bundle.model, asked, options, SEARCHED)
    found = search(model, asked, options, SEARCHED)
    assert [[h.tokens for h in hypotheses] for hypotheses in found] == [
        [h.tokens for h in hypotheses] for hypotheses in expected
    ]
    assert len({hypotheses[0].tokens for hypotheses in found}) > 3
    for mine, theirs in zip(found, expected, strict=True):
        assert [h.score for h in mine] == pytest.approx([h.score for h in theirs], abs=1e-4)


def test_targets_are_scored_the_same(bundle: Bundle, model: OnnxModel) -> None:
    given = [request.source for request in requests(6)], [[4], [], [5, 6, 7], [8] * 7, [9, 4], [11]]
    expected = score_targets(bundle.model, *given, SearchVocabulary(BOS, EOS))
    found = score_targets(model, *given, SearchVocabulary(BOS, EOS))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_it_joins_an_ensemble(bundle: Bundle, model: OnnxModel) -> None:
    """The mean of the same probabilities twice is these probabilities."""
    asked, options = requests(4), DecodingOptions(beam_size=3)
    ensemble = Ensemble([bundle.model, model])
    expected = search(bundle.model, asked, options, SEARCHED)
    found = search(ensemble, asked, options, SEARCHED)
    assert [hypotheses[0].tokens for hypotheses in found] == [hypotheses[0].tokens for hypotheses in expected]


def test_a_search_that_needs_attention_is_refused(model: OnnxModel) -> None:
    with pytest.raises(ConfigError, match=r"coverage_penalty.*OnnxModel"):
        search(model, requests(1), DecodingOptions(coverage_penalty=0.2), SearchVocabulary(BOS, EOS))


def test_sentences_that_come_and_go_find_the_same(bundle: Bundle, model: OnnxModel) -> None:
    asked, options = requests(20), DecodingOptions(beam_size=4)

    expected = search(bundle.model, asked, options, SEARCHED)
    found = decode_continuously(model, asked, options, SEARCHED, max_rows=16, max_batch_tokens=1000)
    assert [hypotheses[0].tokens for hypotheses in found] == [hypotheses[0].tokens for hypotheses in expected]


def test_translating_with_the_folder_runs_its_sessions(
    bundle: Bundle, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["abc", "hgfed", "", "b"]
    expected = Translator(bundle).translate(texts, DecodingOptions(n_best=2))
    translator = load_translator(exported)
    steps, plain = [], OnnxModel.step

    def counted(model: OnnxModel, state: OnnxState, tokens: Tensor, *, attention: bool = False) -> Step:
        steps.append(state.length)
        return plain(model, state, tokens)

    monkeypatch.setattr(OnnxModel, "step", counted)
    found = translator.translate(texts, DecodingOptions(n_best=2), alignment=True)
    assert max(steps) > 1
    for mine, theirs in zip(found, expected, strict=True):
        assert [candidate.text for candidate in mine.candidates] == [candidate.text for candidate in theirs.candidates]
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)
    assert found[0].candidates[0].alignment is not None
    assert translator.max_source_tokens == 64  # within the maximum length of the export
    assert Translator(bundle).max_source_tokens == 256


# The files.


def graphs(folder: Path) -> list[onnx.ModelProto]:
    return [onnx.load(folder / name, load_external_data=False) for name in ("encoder.onnx", "decoder_step.onnx")]


def test_the_graphs_are_valid_and_say_what_they_are(exported: Path) -> None:
    for name in ("encoder.onnx", "decoder_step.onnx"):
        onnx.checker.check_model(exported / name, full_check=True)  # types and shapes are inferred throughout
    for graph in graphs(exported):
        assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 20)]
        facts = {entry.key: entry.value for entry in graph.metadata_props}
        assert facts.items() >= {"headway.format": "1", "headway.max_length": "64"}.items()
        assert graph.producer_name == "headway"


def test_inputs_and_outputs_have_their_names_and_dimensions(exported: Path) -> None:
    def shapes(values: Any) -> dict[str, list[str | int]]:
        return {value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in values}

    encoder, step = (graph.graph for graph in graphs(exported))
    parts = ("keys.0", "values.0", "keys.1", "values.1")
    memory = {f"memory_{part}": ["sentences", 2, "source_length", 8] for part in parts}
    mask: dict[str, Any] = {"memory_mask": ["sentences", "source_length"]}
    assert shapes(encoder.input) == {"source": ["sentences", "source_length"]}
    assert shapes(encoder.output) == mask | memory
    prefix = {f"prefix_{part}": ["rows", 2, "prefix_length", 8] for part in parts}
    assert shapes(step.input) == {"tokens": ["rows"], "positions": ["rows"]} | mask | prefix | memory
    grown = {part: ["rows", 2, "next_length", 8] for part in parts}
    assert shapes(step.output) == {"logits": ["rows", 12]} | grown


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_the_graphs_share_one_file_of_weights_and_use_each(tmp_path: Path, tie: str) -> None:
    bundle = made(tie=tie, positions="learned", max_length=10)
    export(bundle, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    content = (tmp_path / "model" / "model.safetensors").read_bytes()
    used = set()
    for graph in graphs(tmp_path / "model"):
        for tensor in graph.graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if tensor.name not in weights:
                assert not place
                assert len(tensor.raw_data) <= 64
                continue
            start, length = int(place["offset"]), int(place["length"])
            assert content[start : start + length] == weights[tensor.name].numpy().tobytes()
            assert tuple(tensor.dims) == tuple(weights[tensor.name].shape)
            used.add(tensor.name)
    assert used == set(weights)


def test_it_stays_a_model_folder(bundle: Bundle, exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "README.md", "encoder.onnx", "decoder_step.onnx",
    }  # fmt: skip
    loaded = Bundle.load(exported)
    source, target = torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 4]])
    assert_close(loaded.model(source, target), bundle.model(source, target))
    assert (exported / DECODER_STEP_FILE).is_file()
    assert "at most 64 tokens" in " ".join((exported / "README.md").read_text().split())


def test_a_model_in_another_precision_or_mode_is_written_in_float32_and_left_alone(tmp_path: Path) -> None:
    bundle = made(dropout=0.5)
    bundle.model.to(torch.bfloat16).train()
    export(bundle, tmp_path / "model")
    assert {weight.dtype for weight in load_file(tmp_path / "model" / "model.safetensors").values()} == {torch.float32}
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {torch.bfloat16}
    assert bundle.model.training
    source, target = torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 4]])
    loaded = OnnxModel.load(tmp_path / "model")
    expected = Bundle.load(tmp_path / "model").model(source, target).detach()
    assert_close(loaded(source, target), expected)
    rounded = bundle.model.float().eval()(source, target).detach()  # with positions that bfloat16 has rounded
    torch.testing.assert_close(expected, rounded, atol=0.05, rtol=0)


def test_weights_of_the_same_layout_may_be_put_in_place(bundle: Bundle, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight * 0.9 for name, weight in weights.items()}, folder / "model.safetensors")
    source, target = torch.tensor([[4, 5, EOS]]), torch.tensor([[BOS, 4]])
    found = OnnxModel.load(folder)(source, target)
    assert_close(found, Bundle.load(folder).model(source, target).detach())
    assert not torch.allclose(found, bundle.model(source, target))


# The guide.


def test_its_examples_run(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text(encoding="utf-8")
    guide, _, _ = guide.partition("## Language models")  # another test runs the example for language models
    monkeypatch.chdir(tmp_path)
    bundle.save(Path("runs/de-en/best"), "# Card")
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(example, names)
    assert isinstance(names["model"], OnnxModel)
    asked = requests(12)
    expected = search(bundle.model, asked, DecodingOptions(beam_size=1), SEARCHED)
    found = [names["greedy"](list(request.source), request.limit) for request in asked]
    assert found == [list(hypotheses[0].tokens) for hypotheses in expected]


# Errors.


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in REFUSED for value in sorted(REFUSED[name])])
def test_options_that_the_graphs_do_not_have_are_refused_by_name(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} = '{value}' cannot be exported to ONNX; supported: "):
        export(made(**{name: value}), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_the_graphs_cannot_say_is_refused_and_the_old_folder_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = made(output_bias=True)
    with torch.no_grad():
        bundle.model.projection.bias[BOS] = -1e4  # as in imported models; it must not affect the others' tolerance
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Transformer, "embed_source", lambda self, tokens: 2 * self.embed_target(tokens))
    with pytest.raises(BundleError, match=r"differ from the model's.*nothing was written"):
        export(bundle, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_weights_that_are_not_finite_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    damaged = made()
    with torch.no_grad():
        damaged.model.projection.weight[5] = torch.nan
    with pytest.raises(BundleError, match="its weights are not finite"):
        export(damaged, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_another_precision_is_refused(exported: Path) -> None:
    assert load_translator(exported, precision="float32").target_languages == ()
    with pytest.raises(ConfigError, match=r"precision 'int8': .* is an ONNX folder, which runs in float32"):
        load_translator(exported, precision="int8")


def test_a_limit_too_small_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_length = 1: expected at least 2"):
        export(bundle, tmp_path / "model", max_length=1)


def test_sequences_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    export(made(), tmp_path / "model", max_length=3)
    loaded = OnnxModel.load(tmp_path / "model")
    assert loaded.max_length == 3
    state = loaded.start([[4, 5, EOS]])
    for _ in range(3):
        loaded.step(state, torch.tensor([4])).logits()
    with pytest.raises(LengthError, match=r"4 tokens is longer than the 3 positions of this ONNX export; split"):
        loaded.step(state, torch.tensor([4])).logits()
    with pytest.raises(LengthError, match="4 tokens is longer than the 3"):
        loaded.start([[4, 5, 6, EOS]])


def test_graphs_of_two_exports_have_the_shorter_limit(bundle: Bundle, folder: Path, tmp_path: Path) -> None:
    export(bundle, tmp_path / "shorter", max_length=20)
    shutil.copy(tmp_path / "shorter" / "decoder_step.onnx", folder)
    assert OnnxModel.load(folder).max_length == 20


def test_learned_positions_have_their_own_limit(tmp_path: Path) -> None:
    export(made(positions="learned", max_length=9), tmp_path / "model", max_length=30)
    assert OnnxModel.load(tmp_path / "model").max_length == 9


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(
    bundle: Bundle, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # with this entry in sys.modules, an import fails
    with pytest.raises(MissingPackageError, match=rf"ONNX needs the package '{package}'.*'headway\[onnx\]'"):
        export(bundle, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_is_enough_to_run(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert OnnxModel.load(exported).max_length == 64
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match="'onnxruntime'"):
        OnnxModel.load(exported)


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder_step.onnx", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_missing_and_damaged_files_are_named(folder: Path, name: str, damage: str) -> None:
    content = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(BundleError, match=rf"{name}.*(missing; expected|cannot load|model again|damaged)"):
        OnnxModel.load(folder)


@pytest.mark.parametrize(
    "start", [b"\xff" * 8, (5).to_bytes(8, "little") + b"[1,2]", (4).to_bytes(8, "little") + b'{"a"']
)
def test_a_header_of_weights_that_makes_no_sense(folder: Path, start: bytes) -> None:
    model = OnnxModel.load(folder)
    assert model.max_length == 64
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(start)
    with pytest.raises(BundleError, match=r"model.safetensors.*damaged|cannot load"):
        OnnxModel.load(folder)


def test_another_folder_is_none_of_these(bundle: Bundle, tmp_path: Path) -> None:
    bundle.save(tmp_path / "plain", "# Card")
    assert not (tmp_path / "plain" / DECODER_STEP_FILE).exists()
    for name in ("plain", "nowhere"):
        with pytest.raises(BundleError, match=rf"{name}/encoder.onnx: missing; expected a folder that `headway export"):
            OnnxModel.load(tmp_path / name)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("headway.format", None, "not a graph from Headway"),
        ("headway.format", "x", "not a graph from Headway"),
        ("headway.format", "2", "format 2 is newer than format 1 of this version of Headway; update Headway"),
        ("headway.weights", "0123", "does not belong to the weights in model.safetensors"),
    ],
)
@pytest.mark.parametrize("name", ["encoder.onnx", "decoder_step.onnx"])
def test_graphs_of_others_and_of_the_future(folder: Path, name: str, key: str, value: str | None, message: str) -> None:
    graph = onnx.load(folder / name, load_external_data=False)
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    del graph.metadata_props[:]
    onnx.helper.set_model_props(graph, {k: v for k, v in (facts | {key: value}).items() if v is not None})
    onnx.save_model(graph, folder / name)
    with pytest.raises(BundleError, match=rf"{name}: {message}"):
        OnnxModel.load(folder)


def test_weights_of_another_layout_are_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "encoder.blocks.0.another": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(BundleError, match="does not belong to the weights"):
        OnnxModel.load(folder)
