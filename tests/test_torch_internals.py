"""Each undocumented name of PyTorch has its effect; without it the public form gives the same results, and says so."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headway import torch_internals
from headway.bundle import build_without_initialization
from headway.engine import search_support
from headway.engine.accelerate import accelerate, layer_accelerations
from headway.models.recurrent import RecurrentConfig
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.recurrent import RecurrentLayer
from headway.predict.shared_weights import copy_sharing_weights
from headway.training.averaging import MovingAverage
from headway.training.optim import OptimizerConfig, clip_and_step, make_optimizer

CPU = torch.device("cpu")
SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}


def try_again() -> None:
    """Forget which names have been tried."""
    for value in vars(torch_internals).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture(autouse=True)
def _tried_again() -> Iterator[None]:
    try_again()
    yield
    try_again()


def small_model() -> Transformer:
    torch.manual_seed(0)
    return build_model(TransformerConfig.parse(SIZES, "test"), 11, 11)


def warned(action: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return the result of an action that runs twice, and all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
        result = action()
    return result, [str(each.message) for each in caught]


def raises(*_: object, **__: object) -> Any:
    raise TypeError("takes other arguments")


class TestEffect:
    """Warnings are errors in tests, so these also fail if a name cannot be used in this version."""

    def test_the_gradient_of_softmax_is_that_of_autograd(self) -> None:
        scores, gradient = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
        (expected,) = torch.autograd.grad(scores.softmax(-1), scores, gradient)
        torch.testing.assert_close(torch_internals.softmax_backward(gradient, scores.softmax(-1).detach()), expected)

    @pytest.mark.parametrize("name", ["sigmoid", "tanh"])
    def test_the_gradients_of_gates_are_those_of_autograd(self, name: str) -> None:
        x, gradient, out = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5), torch.empty(3, 5)
        output = getattr(torch, name)(x)
        (expected,) = torch.autograd.grad(output, x, gradient)
        assert getattr(torch_internals, f"{name}_backward")(gradient, output.detach(), out=out) is out
        torch.testing.assert_close(out, expected)

    @pytest.mark.parametrize(
        ("method", "is_forward"),
        [
            ("register_forward_hook", True),
            ("register_forward_pre_hook", True),
            ("register_full_backward_hook", False),
            ("register_full_backward_pre_hook", False),
        ],
    )
    def test_hooks_are_seen_until_they_are_removed(self, method: str, is_forward: bool) -> None:
        module, other = nn.Linear(2, 2), nn.Linear(2, 2)
        assert not torch_internals.has_hooks(module, other)
        hook = getattr(module, method)(lambda *_: None)
        assert torch_internals.has_hooks(other, module)
        assert torch_internals.has_forward_hooks(other, module) == is_forward
        hook.remove()
        assert not torch_internals.has_hooks(module, other)

    @pytest.mark.parametrize("kind", ["transformer", "recurrent"])
    def test_a_model_that_will_be_loaded_draws_no_random_numbers(self, kind: str) -> None:
        sizes: dict[str, Any] = SIZES if kind == "transformer" else {"d_model": 16}
        config = (TransformerConfig if kind == "transformer" else RecurrentConfig).parse(sizes, "test")
        before = torch.get_rng_state()
        build_without_initialization(config, 11, 11)
        assert torch.equal(torch.get_rng_state(), before)
        build_model(config, 11, 11)
        assert not torch.equal(torch.get_rng_state(), before)

    def test_weights_that_will_be_loaded_are_not_made_orthogonal(self) -> None:
        """The decomposition takes longer than drawing the numbers."""
        called: list[str] = []

        class Recorder(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                called.append(func.__name__)
                return func(*args, **(kwargs or {}))

        with Recorder(), torch_internals.skip_initialization():
            RecurrentLayer("gru", 2, 2)
        assert called
        assert "linalg_qr" not in called
        with Recorder():
            RecurrentLayer("gru", 2, 2)
        assert "linalg_qr" in called


# How fused Adam may stop to obey its attributes: what a step does with the flag and the divisor.
DEAF: dict[str, Callable[[Tensor, Tensor | None], tuple[Tensor | None, Tensor | None]]] = {
    "reads neither": lambda flag, divisor: (None, None),
    "does not skip": lambda flag, divisor: (None, divisor),
    "does not clip": lambda flag, divisor: (flag, None),
    "multiplies": lambda flag, divisor: (flag, divisor and 1 / divisor),
    "fails": raises,
}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    "name", [name for name, value in vars(torch_internals).items() if hasattr(value, "cache_clear")]
)
def test_names_are_tried_wherever_they_are_first_needed(name: str, device: str) -> None:
    """A model whose weights will be loaded is built with "meta" as the default device, and searches infer."""
    arguments = [CPU] if name == "fused_adam_step_works" else []
    with torch.device(device), torch.autocast("cpu", torch.bfloat16):
        assert getattr(torch_internals, name)(*arguments)
    try_again()
    with torch.device(device), torch.inference_mode():
        assert getattr(torch_internals, name)(*arguments)


@pytest.mark.parametrize(
    "name", [name for name, value in vars(torch_internals).items() if hasattr(value, "cache_clear")]
)
def test_names_are_usable_with_another_default_type(name: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert getattr(torch_internals, name)(*([CPU] if name == "fused_adam_step_works" else []))
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_the_operation_the_gradient_of_softmax_is_as_precise_as_its_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_internals, "_softmax_backward_works", lambda: False)
    scores = torch.randn(3, 5, requires_grad=True, dtype=torch.float64)
    gradient = torch.randn(3, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad(scores.softmax(-1), scores, gradient)
    found = torch_internals.softmax_backward(gradient, scores.softmax(-1).detach())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


class TestFusedAdam:
    @pytest.fixture(params=DEAF)
    def _deaf(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        step, change = torch.optim.AdamW.step, DEAF[request.param]

        def changed(self: torch.optim.AdamW, closure: None = None) -> None:
            if "found_inf" not in vars(self):
                step(self, closure)
                return
            own = {name: vars(self)[name] for name in ("found_inf", "grad_scale")}
            flag, divisor = change(own["found_inf"], own["grad_scale"])
            vars(self).update(found_inf=flag, grad_scale=divisor)
            step(self, closure)
            vars(self).update(own)

        monkeypatch.setattr(torch.optim.AdamW, "step", changed)

    @staticmethod
    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = make_optimizer(model, OptimizerConfig())
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        return optimizer

    @pytest.mark.usefixtures("_deaf")
    def test_steps_are_clipped_and_skipped_all_the_same(self) -> None:
        """Clipping is compared with PyTorch's own; moments show it, because Adam's update hardly depends on it."""
        model = small_model()
        other = copy.deepcopy(model)
        optimizer, plain = self.optimizer_of(model), self.optimizer_of(other)

        def step() -> None:
            for weight, twin in zip(model.parameters(), other.parameters(), strict=True):
                weight.grad = torch.randn_like(weight)
                twin.grad = weight.grad.clone()
            assert clip_and_step(optimizer, 0.5)
            torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            plain.step()
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, torch.inf)
            assert not clip_and_step(optimizer, 0.5)

        _, (warning,) = warned(step)
        assert "fused AdamW with the attributes found_inf and grad_scale" in warning
        assert "slower" in warning
        for weight, twin in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(weight, twin)
            for key, value in plain.state[twin].items():
                assert torch.equal(optimizer.state[weight][key], value)

    def test_the_trial_changes_no_random_numbers(self) -> None:
        before = torch.get_rng_state()
        assert torch_internals.fused_adam_step_works(CPU)
        assert torch.equal(torch.get_rng_state(), before)


# Each operation with the names that it uses.
def _softmax() -> list[Tensor]:
    return [torch_internals.softmax_backward(torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[0.5, 0.2, 0.3]]))]


def _gates() -> list[Tensor]:
    gradient, output = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.1, 0.7, 0.9])
    functions = (torch_internals.sigmoid_backward, torch_internals.tanh_backward)
    return [function(gradient, output, out=torch.empty(3)) for function in functions]


def _average() -> list[Tensor]:
    model = small_model()
    average = MovingAverage(model, 0.5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    average.update(100, torch.tensor(True))
    with average.swap_into_model():
        return [weight.detach().clone() for weight in model.parameters()]


def _recurrent(kind: Literal["gru", "lstm"]) -> list[Tensor]:
    torch.manual_seed(0)
    layer = accelerate(RecurrentLayer(kind, 4, 3, weight_drop=0.5)).train()
    output, state = layer(torch.randn(2, 5, 4), layer.initial_state(torch.zeros(2, 5, 4)))
    output.sum().backward()
    return [output.detach(), *state, *(weight.grad for weight in layer.parameters() if weight.grad is not None)]


OPERATIONS: dict[str, tuple[Any, str, Callable[[], list[Tensor]]]] = {
    "_softmax_backward_data": (torch, "torch._softmax_backward_data", _softmax),
    "sigmoid_backward": (torch.ops.aten, "aten::sigmoid_backward", _gates),
    "tanh_backward": (torch.ops.aten, "aten::tanh_backward", _gates),
    "_foreach_lerp_": (torch, "torch._foreach_lerp_", _average),
    "lstm": (torch, "torch.lstm", lambda: _recurrent("lstm")),
    "gru": (torch, "torch.gru", lambda: _recurrent("gru")),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("way", ["missing", "other arguments", "other results"])
def test_without_an_operation_results_are_the_same(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, shown, compute = OPERATIONS[name]
    expected = compute()
    real = getattr(owner, name)

    def other_values(*arguments: Any, **options: Any) -> Any:
        """Return what the operation returns, and write what it writes, but with other numbers."""
        result = real(*arguments, **options)
        written = options.get("grad_input", arguments[0] if name.endswith("lerp_") else result)
        for tensor in written if isinstance(written, list | tuple) else [written]:
            tensor.mul_(1.5)
        return result

    if way == "missing" and owner is torch:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, other_values if way == "other results" else raises)
    try_again()
    found, (warning,) = warned(compute)
    assert f"PyTorch {torch.__version__}" in warning
    assert shown in warning
    assert "slower" in warning or "slowly" in warning
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def _hide_hooks(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "elsewhere":  # the attribute exists, but a new hook is not in it
        monkeypatch.setattr(nn.Module, "register_forward_hook", lambda *_: None)
    else:
        monkeypatch.setattr(torch_internals, "_FORWARD_HOOKS", {"_renamed_hooks": "register_forward_hook"})


@pytest.mark.parametrize("way", ["renamed", "elsewhere"])
def test_without_visible_hooks_each_layer_calls_its_hooks(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = small_model().train(), list[str]()
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear) and name.endswith("inner"):
            part.register_forward_hook(lambda *_, name=name: calls.append(name))
    fast, tokens = accelerate(copy.deepcopy(model)), torch.tensor([[3, 4, 5]])
    _hide_hooks(monkeypatch, way)
    try_again()
    found, warning = warned(lambda: fast(tokens, tokens))
    expected = model(tokens, tokens)
    assert len(warning) <= 1  # none without kernels, which do not look for hooks
    torch.testing.assert_close(found, expected)
    assert calls == ["encoder.blocks.0.feed_forward.inner", "decoder.blocks.0.feed_forward.inner"] * 3


def test_without_visible_hooks_a_model_searches_in_its_own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_hooks(monkeypatch, "renamed")
    reason, (warning,) = warned(lambda: search_support.unsupported_reason(small_model()))
    assert "whose hooks this version of PyTorch does not expose" in reason
    assert "_forward_hooks" in warning


@pytest.mark.parametrize("way", ["missing", "empty"])
def test_without_visible_parts_a_model_searches_in_its_own_form(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "module_members", raises if way == "missing" else lambda _: dict[str, Any]())
    reason, (warning,) = warned(lambda: search_support.unsupported_reason(small_model()))
    assert "whose parts this version of PyTorch does not expose" in reason
    assert "nn.Module._modules" in warning


@pytest.mark.parametrize("way", ["missing", "empty"])
def test_without_visible_parts_layers_stay_plain(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_internals, "module_members", raises if way == "missing" else lambda _: dict[str, Any]())
    model, (warning,) = warned(lambda: accelerate(small_model()))
    assert "nn.Module._modules" in warning
    assert {type(part).__module__ for part in model.modules() if "headway.engine" in type(part).__module__} == set()
    assert {form.plain_reason for form in layer_accelerations(model)} == {"PyTorch does not expose its parts"}


def test_without_visible_loading_hooks_a_copy_of_a_model_still_shares_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_internals, "rebind_load_hooks", raises)
    model = small_model()
    twin, (warning,) = warned(lambda: copy_sharing_weights(model))
    assert "nn.Module._load_state_dict_pre_hooks" in warning
    assert [*map(id, twin.parameters()), *map(id, twin.buffers())] == [
        *map(id, model.parameters()),
        *map(id, model.buffers()),
    ]
    assert not set(map(id, twin.modules())) & set(map(id, model.modules()))
    weights = {name: weight + 1 for name, weight in model.state_dict().items()}
    del model
    twin.load_state_dict(weights)
    torch.testing.assert_close(twin.state_dict(), weights)


def test_without_skipped_initialization_a_model_is_built_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.nn.init.normal_

    def unseen(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Draw as a function would that a TorchFunctionMode does not see."""
        with torch._C.DisableTorchFunction():
            return draw(tensor, *arguments, **options)

    monkeypatch.setattr(nn.init, "normal_", unseen)
    before = torch.get_rng_state()
    _, (warning,) = warned(torch_internals._initialization_is_skipped)
    assert "torch.nn.init within a TorchFunctionMode" in warning
    assert torch.equal(torch.get_rng_state(), before)
    build_without_initialization(TransformerConfig.parse(SIZES, "test"), 11, 11)
