"""The output projection that is computed in chunks of the vocabulary."""

import gc

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.engine.torch_backend import TorchOutputProjection


def tensors_alive() -> int:
    gc.collect()
    return sum(type(each) is Tensor for each in gc.get_objects())


def test_tokens_banned_once_are_not_kept() -> None:
    """Each request of a service may ban other tokens."""
    layer = nn.Linear(4, 900)
    projection = TorchOutputProjection(layer, lambda weight, bias: lambda x: F.linear(x, weight, bias))
    hidden = torch.randn(2, 4)
    with torch.inference_mode():
        before = tensors_alive()
        for number in range(800):
            banned = (number, number + 50)
            assert not set(banned) & set(projection.top_k(hidden, 3, banned, 2).tokens.flatten().tolist())
        assert tensors_alive() < before + 400
