"""RMSNorm against its formula."""

from __future__ import annotations

import torch

from headway.nn.norms import RMSNorm


def test_vectors_are_divided_by_their_root_mean_square() -> None:
    norm = RMSNorm(4, epsilon=0.0)
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0])
    with torch.no_grad():
        found = norm(torch.tensor([3.0, -3.0, 3.0, -3.0]))
    torch.testing.assert_close(found, torch.tensor([1.0, -2.0, 3.0, -4.0]))
    assert not RMSNorm(2)(torch.zeros(2)).any()


def test_the_output_has_the_type_of_the_input() -> None:
    assert RMSNorm(4)(torch.randn(3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
