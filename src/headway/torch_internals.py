"""Wrappers for the undocumented PyTorch names that Headway uses, each with a public fallback.

PyTorch may rename or change these names in any release, possibly without an error: if fused Adam ignored
``grad_scale``, gradients would silently not be clipped. Each name is therefore tested once per process, on tensors of
two elements, before it is first used. If it is missing or its effect has changed, a single warning is issued, and the
public fallback is used from then on, which is as exact but slower.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# The attributes that contain a module's hooks, and the methods that register the hooks.
_FORWARD_HOOKS = {"_forward_hooks": "register_forward_hook", "_forward_pre_hooks": "register_forward_pre_hook"}
_BACKWARD_HOOKS = {
    "_backward_hooks": "register_full_backward_hook",
    "_backward_pre_hooks": "register_full_backward_pre_hook",
}


def _usable(name: str, has_usual_effect: Callable[[], bool], consequence: str) -> bool:
    """Return whether an undocumented name has its usual effect. If not, warn about the consequence."""
    try:
        # Not on the default device, which is "meta" while a model is built without weights. Without autocast, because
        # PyTorch's LSTM does not support bfloat16 on processors without AVX-512.
        with torch.device("cpu"), torch.autocast("cpu", enabled=False):
            if has_usual_effect():
                return True
        reason = "no longer has its usual effect"
    except Exception as error:  # a name that is missing or whose arguments changed may raise any exception
        reason = f"cannot be used ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    warnings.warn(f"PyTorch {torch.__version__}: {name} {reason}; {consequence}", stacklevel=3)
    return False


def fused_adam_step(optimizer: torch.optim.Optimizer, *, finite: Tensor, divisor: Tensor | None) -> None:
    """Take a fused Adam step with the gradients divided by ``divisor``, or change nothing if ``finite`` is False.

    The host does not wait for the values of the tensors. May be called only if :func:`fused_adam_step_works`.
    """
    # torch.amp.GradScaler also sets these attributes; the fused kernel reads them.
    vars(optimizer).update(found_inf=(~finite).float(), grad_scale=divisor)
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]


@cache
def fused_adam_step_works(device: torch.device) -> bool:
    """Return whether :func:`fused_adam_step` divides gradients and skips steps on a device."""
    return _usable(
        "fused AdamW with the attributes found_inf and grad_scale",
        lambda: _fused_step_divides_and_skips(device),
        "training waits for the norm of the gradients and clips them before each step, which is slower",
    )


@torch.no_grad()
def _fused_step_divides_and_skips(device: torch.device) -> bool:
    """Compare with a step computed by hand: gradients (2, -4) divided by 2, betas 1/2, zero initial moments."""
    yes = torch.tensor(True, device=device)
    weight = nn.Parameter(torch.ones(2, device=device, dtype=torch.float32))
    optimizer = torch.optim.AdamW([weight], lr=0.25, betas=(0.5, 0.5), weight_decay=0.0, fused=True)
    for finite, gradient, divisor in ((True, (2.0, -4.0), 2.0), (False, (1.0, torch.inf), 1.0)):
        weight.grad = torch.tensor(gradient, device=device, dtype=torch.float32)
        fused_adam_step(optimizer, finite=yes if finite else ~yes, divisor=torch.full_like(weight[0], divisor))
    state = optimizer.state[weight]
    # The second step must not change anything. In its first step, Adam moves each weight by the learning rate.
    actual = torch.stack([weight, state["exp_avg"], state["exp_avg_sq"], state["step"].expand(2)])
    expected = torch.tensor([[0.75, 1.25], [0.5, -1.0], [0.5, 2.0], [1.0, 1.0]], device=device, dtype=torch.float32)
    return bool(torch.allclose(actual, expected))


def softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the inputs of a softmax over the last dimension with the outputs ``weights``."""
    if _softmax_backward_works():
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)
    products = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) * weights
    return (products - weights * products.sum(-1, keepdim=True)).to(weights.dtype)


@cache
def _softmax_backward_works() -> bool:
    def has_usual_effect() -> bool:
        """Check the gradient (1, 0) with the softmax outputs (1/4, 3/4): 1/4 (1 - 1/4) and 3/4 (0 - 1/4)."""
        weights = torch.tensor([[0.25, 0.75]])
        actual = torch._softmax_backward_data(torch.tensor([[1.0, 0.0]]), weights, -1, weights.dtype)
        return torch.allclose(actual, torch.tensor([[0.1875, -0.1875]]))

    return _usable("torch._softmax_backward_data", has_usual_effect, "training is slower")


def sigmoid_backward(gradient: Tensor, output: Tensor, *, out: Tensor) -> Tensor:
    """Write the gradient of the input of a sigmoid with the output ``output`` to ``out``, and return ``out``."""
    if _gate_gradients_work():
        torch.ops.aten.sigmoid_backward(gradient, output, grad_input=out)
        return out
    return torch.mul(gradient * (1 - output), output, out=out)


def tanh_backward(gradient: Tensor, output: Tensor, *, out: Tensor) -> Tensor:
    """Write the gradient of the input of a tanh with the output ``output`` to ``out``, and return ``out``."""
    if _gate_gradients_work():
        torch.ops.aten.tanh_backward(gradient, output, grad_input=out)
        return out
    return torch.mul(gradient, 1 - output * output, out=out)


@cache
def _gate_gradients_work() -> bool:
    def has_usual_effect() -> bool:
        gradient, output, actual = torch.tensor([2.0, 2.0]), torch.tensor([0.5, 0.25]), torch.empty(2, 2)
        torch.ops.aten.sigmoid_backward(gradient, output, grad_input=actual[0])
        torch.ops.aten.tanh_backward(gradient, output, grad_input=actual[1])
        return torch.allclose(actual, torch.tensor([[0.5, 0.375], [1.5, 1.875]]))

    return _usable("aten::sigmoid_backward or aten::tanh_backward", has_usual_effect, "training of an LSTM is slower")


def foreach_lerp(tensors: Sequence[Tensor], ends: Sequence[Tensor], weight: Tensor) -> None:
    """Interpolate each tensor in place toward its end point: add ``weight`` times the difference."""
    if _lerp_all_works():
        torch._foreach_lerp_(list(tensors), list(ends), [weight] * len(tensors))
    else:
        for tensor, end in zip(tensors, ends, strict=True):
            tensor.lerp_(end, weight)


@cache
def _lerp_all_works() -> bool:
    def has_usual_effect() -> bool:
        start = torch.tensor([0.0, 4.0])
        torch._foreach_lerp_([start], [torch.tensor([1.0, 0.0])], [torch.tensor(0.25)])
        return torch.allclose(start, torch.tensor([0.25, 3.0]))

    return _usable("torch._foreach_lerp_", has_usual_effect, "averaging the weights is slower on a GPU")


def run_recurrent_layer(
    x: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor], *, training: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run an LSTM layer (if there are two states) or a GRU layer on x (R, T, D), with weights that are not parameters.

    May be called only if :func:`run_recurrent_layer_works`.

    Args:
        x: Input sequence.
        state: The initial states, each of shape (1, R, D).
        weights: The two matrices and the two biases, in the order of ``nn.LSTM``.
        training: Whether gradients are needed.
    """
    options: Any = (
        True,
        1,
        0.0,
        training,
        False,
        True,
    )  # biases, 1 layer, no dropout, training, one direction, batch first
    if len(state) == 2:
        outputs, *after = torch.lstm(x, tuple(state), tuple(weights), *options)
    else:
        outputs, *after = torch.gru(x, state[0], tuple(weights), *options)
    return outputs, tuple(after)


@cache
def run_recurrent_layer_works() -> bool:
    """Return whether :func:`run_recurrent_layer` gives the same results as ``nn.LSTM`` and ``nn.GRU``."""

    @torch.no_grad()
    def has_usual_effect() -> bool:
        x, start = torch.tensor([[[1.0, -2.0], [0.5, 3.0]]]), torch.tensor([[[0.5, -0.5]]])
        with torch.random.fork_rng(devices=[]):
            cells = nn.LSTM(2, 2, batch_first=True), nn.GRU(2, 2, batch_first=True)
        for cell, state in zip(cells, ((start, start), (start,)), strict=True):
            expected, _ = cell(x, state if len(state) == 2 else state[0])
            actual, _ = run_recurrent_layer(x, state, list(cell.parameters()), training=True)
            if not torch.allclose(actual, expected):
                return False
        return True

    return _usable(
        "torch.lstm or torch.gru", has_usual_effect, "recurrent layers with weight_dropout train more slowly"
    )


def has_hooks(*modules: nn.Module) -> bool:
    """Return whether any of the modules has hooks; True if this cannot be determined."""
    return has_forward_hooks(*modules) or any(_any_of(_BACKWARD_HOOKS, module) for module in modules)


def has_forward_hooks(*modules: nn.Module) -> bool:
    """Return whether any of the modules has forward hooks; True if this cannot be determined."""
    return not hooks_are_visible() or any(_any_of(_FORWARD_HOOKS, module) for module in modules)


def _any_of(attributes: dict[str, str], module: nn.Module) -> bool:
    return any(getattr(module, attribute) for attribute in attributes)


@cache
def hooks_are_visible() -> bool:
    """Return whether a module's hooks can be listed."""

    def has_usual_effect() -> bool:
        for attribute, method in (_FORWARD_HOOKS | _BACKWARD_HOOKS).items():
            module = nn.Identity()
            before = bool(getattr(module, attribute))
            getattr(module, method)(lambda *_: None)
            if before or not getattr(module, attribute):
                return False
        return True

    consequence = "the fast layers, which cannot call hooks, are not used: training and decoding are slower"
    return _usable("nn.Module._forward_hooks or a similar attribute", has_usual_effect, consequence)


def module_members(module: nn.Module) -> dict[str, Any]:
    """Return the parameters, buffers and submodules of a module, including those that are None.

    May be called only if :func:`module_members_are_visible`.
    """
    return {**module._modules, **module._parameters, **module._buffers}


def module_attributes_and_members(module: nn.Module) -> dict[str, Any]:
    """Return the attributes that a module has in addition to those of ``nn.Module``, and its :func:`module_members`."""
    added = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
    return added | module_members(module)


_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


@cache
def module_members_are_visible() -> bool:
    """Return whether :func:`module_members` can be used."""

    def has_usual_effect() -> bool:
        module = nn.Module()
        module.weight, module.part = nn.Parameter(torch.zeros(1)), nn.Identity()
        module.register_parameter("bias", None)
        module.register_buffer("table", None)
        module.register_module("empty", None)
        return module_members(module) == {
            "part": module.part,
            "empty": None,
            "weight": module.weight,
            "bias": None,
            "table": None,
        }

    consequence = "layers are not replaced by fast ones: training and decoding are slower"
    return _usable("nn.Module._modules, nn.Module._parameters or nn.Module._buffers", has_usual_effect, consequence)


def rebind_load_hooks(copied: nn.Module, *, original: nn.Module) -> None:
    """Make the load-state-dict pre-hooks of a copied module refer to the copy instead of the original.

    May be called only if :func:`load_hooks_are_visible`.

    Args:
        copied: The copied module, whose hooks still refer to the original.
        original: The module to which the hooks are bound.
    """
    copied._load_state_dict_pre_hooks = copy.deepcopy(copied._load_state_dict_pre_hooks, {id(original): copied})


@cache
def load_hooks_are_visible() -> bool:
    """Return whether :func:`rebind_load_hooks` can be used."""

    def has_usual_effect() -> bool:
        called_with: list[nn.Module] = []
        original, copied = nn.Identity(), nn.Identity()
        original.register_load_state_dict_pre_hook(lambda module, *_: called_with.append(module))  # type: ignore[no-untyped-call]
        copied._load_state_dict_pre_hooks = original._load_state_dict_pre_hooks
        rebind_load_hooks(copied, original=original)
        for module in (copied, original):
            module.load_state_dict({})
        return called_with == [copied, original]

    consequence = "predictors copy the whole model instead of only its modules, which is slower"
    return _usable("nn.Module._load_state_dict_pre_hooks", has_usual_effect, consequence)


@contextmanager
def skip_initialization() -> Iterator[None]:
    """Skip random initialization by ``torch.nn.init`` inside the block, for weights that will be loaded from a file."""
    _initialization_is_skipped()
    with _SkippedInitialization():
        yield


class _SkippedInitialization(TorchFunctionMode):
    # PyTorch does not document which torch.nn.init functions are dispatched to a mode. The other functions call methods
    # that are dispatched.
    NAMES = frozenset(
        {"normal_", "uniform_"}
        | {f"{name}_{distribution}_" for name in ("xavier", "kaiming") for distribution in ("normal", "uniform")}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in self.NAMES:
            return args[0] if args else kwargs["tensor"]
        if name == "linalg_qr":  # nn.init.orthogonal_ decomposes random numbers, which takes longer than drawing them
            return args[0], args[0][: args[0].size(1)]
        return func(*args, **kwargs)


@cache
def _initialization_is_skipped() -> bool:
    def has_usual_effect() -> bool:
        weight = torch.full((2, 2), 3.0)
        with torch.random.fork_rng(devices=[]), _SkippedInitialization():
            for name in _SkippedInitialization.NAMES:
                getattr(nn.init, name)(weight)
        return bool((weight == 3).all())

    return _usable("torch.nn.init within a TorchFunctionMode", has_usual_effect, "loading a model is slower")
