"""Predictors leave the model that they are given as it was: they have a copy, which shares the weights."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway.predict.translation.translator as translator_module
from headway import kernels
from headway.engine import to_search_model
from headway.models.classifier import ClassifierConfig
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.masked import MaskedConfig
from headway.models.recurrent import RecurrentConfig
from headway.models.recurrent_lm import RecurrentLMConfig
from headway.models.registry import ARCHITECTURES, build_model
from headway.models.sequence_classifier import SequenceClassifierConfig
from headway.models.transformer import TransformerConfig
from headway.predict import Classifier, LanguageModel, MaskedLanguageModel, Translator
from headway.predict.shared_weights import copy_sharing_weights, copy_to_device

TEXTS = ["das rote Haus", "der Baum und das grüne Haus", "ein"]
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 16}
CONFIGS: dict[str, Any] = {
    "transformer": TransformerConfig.parse({**SIZES, "encoder_layers": 1, "decoder_layers": 1}, "test"),
    "recurrent": RecurrentConfig.parse({"d_model": 16, "d_embedding": 8}, "test"),
    "decoder_only": DecoderOnlyConfig.parse({**SIZES, "positions": "rotary", "max_length": 600}, "test"),
    "recurrent_lm": RecurrentLMConfig.parse({"d_model": 16, "cell": "lstm"}, "test"),
    "classifier": ClassifierConfig.parse(SIZES, "test"),
    "masked": MaskedConfig.parse({**SIZES, "encoder_layers": 1}, "test"),
    "sequence_classifier": SequenceClassifierConfig.parse(
        {"body": {"kind": "masked", **SIZES, "encoder_layers": 1}}, "test"
    ),
}


@pytest.fixture
def make_bundle(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Return a function that makes a bundle whose model has dropout and is being trained."""

    def make(kind: str) -> Any:
        options = {"dropout": 0.5} if kind != "make_classifier" else {"dropout": 0.5, "encoder_layers": 1}
        bundle = request.getfixturevalue(kind)(**options).bundle
        size = bundle.tokenizers["source"].vocab_size
        model = build_model(bundle.model.config, size, len(bundle.labels) or size)
        model.load_state_dict(bundle.model.state_dict())
        return replace(bundle, model=model.train())

    return make


USES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "make_translator": (Translator, lambda model: (model.translate(TEXTS, alignment=True), model.score(TEXTS, TEXTS))),
    "make_classifier": (Classifier, lambda model: (model.classify(TEXTS), model.explain(TEXTS[0]))),
    "make_language_model": (
        LanguageModel,
        lambda model: (model.generate(TEXTS[0], temperature=0, max_new_tokens=4), model.score(TEXTS)),
    ),
    "make_masked_language_model": (MaskedLanguageModel, lambda model: (model.fill("[MASK] Haus"), model.score(TEXTS))),
}
each_predictor = pytest.mark.parametrize("kind", USES)


def state_of(model: nn.Module) -> list[Any]:
    """Return everything of a model that a predictor might change."""
    return [
        (name, type(module), module.training, vars(module).copy(), dict(module._parameters), dict(module._buffers))
        for name, module in model.named_modules()
    ] + [(tensor.device, tensor.data_ptr(), tensor._version, tensor.grad) for tensor in model.parameters()]


@each_predictor
def test_the_model_stays_as_it_was(make_bundle: Callable[[str], Any], kind: str) -> None:
    predictor_type, use = USES[kind]
    bundle = make_bundle(kind)
    before = state_of(bundle.model)
    predictor = predictor_type(bundle)
    assert use(predictor) == use(predictor), "no dropout"
    assert str(state_of(bundle.model)) == str(before)
    assert not any(module.training for module in predictor.bundle.model.modules())
    assert {id(each) for each in predictor.bundle.model.parameters()} == {
        id(each) for each in bundle.model.parameters()
    }
    assert predictor.bundle.model is not bundle.model


def test_who_translates_in_a_training_loop_goes_on_to_train_with_dropout(make_bundle: Callable[[str], Any]) -> None:
    bundle = make_bundle("make_translator")
    source, target = torch.full((1, 9), 7), torch.full((1, 9), 8)
    Translator(bundle).translate(TEXTS, alignment=True)
    assert not torch.equal(bundle.model(source, target), bundle.model(source, target))
    assert not any(type(module).__module__.startswith("headway.engine") for module in bundle.model.modules())


@each_predictor
def test_forward_passes_see_the_weights_of_further_training(make_bundle: Callable[[str], Any], kind: str) -> None:
    predictor_type, _ = USES[kind]
    bundle = make_bundle(kind)
    predictor = predictor_type(bundle)
    measures: dict[str, Callable[[Any], Any]] = {
        "make_translator": lambda model: model.score(TEXTS, TEXTS),
        "make_classifier": lambda model: model.classify(TEXTS),
    }
    measure = measures.get(kind, lambda model: model.score(TEXTS))
    before = measure(predictor)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.mul_(1.5)
    assert measure(predictor) == measure(predictor_type(bundle)) != before


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    """One model of each architecture."""
    found: nn.Module = build_model(CONFIGS[request.param], 32, 32 if "classifier" not in request.param else 3)
    return found


def run(model: Any, length: int = 9) -> Tensor:
    """Return the result of the model's forward pass on a text."""
    ids = torch.arange(length).remainder(20).add(5).unsqueeze(0)
    takes_two = type(model).__name__ in ("Transformer", "RecurrentModel")
    with torch.inference_mode():
        found: Tensor = model(ids, ids) if takes_two else model(ids)
    return found


def test_a_copy_of_any_architecture_has_its_own_modules_and_the_same_weights(model: nn.Module) -> None:
    twin = copy_sharing_weights(model)
    assert not {id(each) for each in model.modules()} & {id(each) for each in twin.modules()}
    for own, other in ((model.named_parameters, twin.named_parameters), (model.named_buffers, twin.named_buffers)):
        names = {name: id(tensor) for name, tensor in own(remove_duplicate=False)}
        assert names == {name: id(tensor) for name, tensor in other(remove_duplicate=False)}, "tied ones stay tied"
    assert torch.equal(run(model.eval()), run(twin.eval()))
    twin.train()
    assert not any(module.training for module in model.modules())


def test_weights_can_be_loaded_into_a_copy_whose_original_is_gone(model: nn.Module) -> None:
    twin, weights = copy_sharing_weights(model), {name: tensor + 1 for name, tensor in model.state_dict().items()}
    del model
    gc.collect()
    twin.load_state_dict(weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in twin.state_dict().items())


def test_a_copy_on_another_device_has_weights_of_its_own(model: nn.Module) -> None:
    """PyTorch's meta device stands for a GPU: moving a module changes the data of its parameters in place."""
    before = {name: (id(each), each.device, each.data_ptr()) for name, each in model.named_parameters()}
    modules: list[Any] = list(model.modules())
    held = {id(each.cell): list(each.cell._flat_weights) for each in modules if hasattr(each, "cell")}
    moved = copy_to_device(model, torch.device("meta"))
    assert {parameter.device.type for parameter in moved.parameters()} == {"meta"}
    assert {name: (id(each), each.device, each.data_ptr()) for name, each in model.named_parameters()} == before
    for each in modules:
        if id(getattr(each, "cell", None)) in held:
            assert all(one is other for one, other in zip(each.cell._flat_weights, held[id(each.cell)], strict=True))
    assert len(list(moved.parameters())) == len(list(model.parameters())), "tied ones stay tied"


def test_tables_of_positions_grow_on_their_own() -> None:
    model: Any = build_model(CONFIGS["decoder_only"], 32, 32).eval()
    twin = copy_sharing_weights(model)
    tables = {name: table.size(0) for name, table in model.named_buffers()}
    assert tables
    long = run(twin, 500)
    assert {name: table.size(0) for name, table in model.named_buffers()} == tables
    assert all(table.size(0) >= 500 for _, table in twin.named_buffers())
    assert torch.equal(long, run(model, 500))


def test_the_hooks_of_the_model_are_those_of_the_predictor_and_later_ones_are_not(
    make_bundle: Callable[[str], Any],
) -> None:
    bundle, called = make_bundle("make_translator"), list[str]()
    early = bundle.model.encoder.register_forward_hook(lambda *_: called.append("early"))
    translator = Translator(bundle)
    early.remove()
    bundle.model.encoder.register_forward_hook(lambda *_: called.append("late"))
    translator.score(["das"], ["Haus"])
    assert called == ["early"]


def test_hooks_of_a_copy_stay_there(model: nn.Module) -> None:
    before, modules = str(state_of(model)), list[Any](copy_sharing_weights(model).modules())
    for module in modules:
        module.register_forward_hook(lambda *_, **__: None, with_kwargs=True, always_call=True)
        module.register_forward_pre_hook(lambda *_, **__: None, with_kwargs=True)
        module.register_full_backward_hook(lambda *_: None)
        module.register_full_backward_pre_hook(lambda *_: None)
        module.register_state_dict_pre_hook(lambda *_: None)
        module.register_state_dict_post_hook(lambda *_: None)
        module.register_load_state_dict_pre_hook(lambda *_: None)
        module.register_load_state_dict_post_hook(lambda *_: None)
    assert str(state_of(model)) == before


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collect no cycles, which keep objects until the next collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_copy_ends_with_its_last_reference(model: nn.Module, no_collection: None) -> None:
    twin = copy_sharing_weights(model)
    modules = [weakref.ref(module) for module in twin.modules()]
    del twin
    assert not any(module() for module in modules)


@each_predictor
def test_a_predictor_ends_with_its_last_reference(
    make_bundle: Callable[[str], Any], kind: str, no_collection: None
) -> None:
    predictor_type, use = USES[kind]
    predictor = predictor_type(make_bundle(kind))
    use(predictor)
    kept = [weakref.ref(predictor), weakref.ref(predictor.bundle.model)]
    del predictor
    assert [each() for each in kept] == [None, None]


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param("int8", marks=pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")),
    ],
)
def test_predictors_on_one_model_work_in_threads(make_bundle: Callable[[str], Any], precision: Any) -> None:
    bundle = make_bundle("make_translator")

    def translate(_: int) -> object:
        translator = Translator(bundle, precision=precision)
        return translator.translate(TEXTS, alignment=True), translator.score(TEXTS, TEXTS)

    expected = translate(0)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(translate, range(4))) == [expected] * 4


def test_a_model_is_not_converted_while_its_layers_are_replaced(
    make_bundle: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    replacing, converted = threading.Event(), threading.Event()
    accelerate, convert, order = translator_module._accelerate, to_search_model, list[str]()

    def slow_accelerate(model: Any) -> Any:
        replacing.set()
        converted.wait(0.3)  # the other thread would convert the model meanwhile
        order.append("replaced")
        return accelerate(model)

    def noted_convert(*arguments: Any, **keywords: Any) -> Any:
        order.append("converted")
        converted.set()
        return convert(*arguments, **keywords)

    monkeypatch.setattr(translator_module, "_accelerate", slow_accelerate)
    monkeypatch.setattr(translator_module, "to_search_model", noted_convert)
    translator = Translator(make_bundle("make_translator"))
    with ThreadPoolExecutor(2) as threads:
        scoring = threads.submit(translator.score, ["das"], ["Haus"])
        assert replacing.wait(30)
        translating = threads.submit(translator.translate, "das")
        scoring.result()
        translating.result()
    assert order == ["replaced", "converted"]
