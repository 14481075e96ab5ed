import torch

from headway.nn import causal_mask, padding_mask


def test_padding_by_hand() -> None:
    tokens = torch.tensor([[5, 6, 2], [7, 2, 0]])
    assert padding_mask(tokens, 0).tolist() == [[[True, True, True]], [[True, True, False]]]
    assert padding_mask(tokens, 2).tolist() == [[[True, True, False]], [[True, False, True]]]


def test_causal_by_hand() -> None:
    assert causal_mask(3).tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]
    assert causal_mask(1).tolist() == [[[True]]]


def test_masks_combine_by_and() -> None:
    both = padding_mask(torch.tensor([[0, 1], [1, 1]]), 0) & causal_mask(2)
    assert both.tolist() == [[[False, False], [False, True]], [[True, False], [True, True]]]
