import torch

from headway.nn import Causal, DocumentMask, causal_mask, padding_mask


def test_padding_by_hand() -> None:
    tokens = torch.tensor([[5, 6, 2], [7, 2, 0]])
    assert padding_mask(tokens, 0).tolist() == [[[True, True, True]], [[True, True, False]]]
    assert padding_mask(tokens, 2).tolist() == [[[True, True, False]], [[True, False, True]]]


def test_causal_by_hand() -> None:
    assert causal_mask(3).tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]
    assert causal_mask(1).tolist() == [[[True]]]


def test_the_marker_of_a_causal_mask_stands_for_its_tensor() -> None:
    assert Causal() == Causal()
    assert torch.equal(Causal().to_tensor(3), causal_mask(3))


def test_masks_combine_by_and() -> None:
    both = padding_mask(torch.tensor([[0, 1], [1, 1]]), 0) & causal_mask(2)
    assert both.tolist() == [[[False, False], [False, True]], [[True, False], [True, True]]]


def test_a_document_mask_is_causal_within_documents() -> None:
    documents = DocumentMask.from_starts(torch.tensor([[1, 0, 0, 1, 1], [0, 0, 1, 0, 0]]).bool())
    assert documents.first_keys.tolist() == [[0, 0, 0, 3, 4], [0, 0, 2, 2, 2]]
    assert documents.positions_in_documents().tolist() == [[0, 1, 2, 0, 0], [0, 1, 0, 1, 2]]
    assert documents.to_tensor()[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert documents.restrict_to_window(1).first_keys.tolist() == [[0, 0, 1, 3, 4], [0, 0, 2, 2, 3]]
    with_tensor = documents.with_tensor()
    assert with_tensor.to_tensor() is with_tensor.to_tensor()
    assert torch.equal(with_tensor.to_tensor(), documents.to_tensor())
    assert with_tensor.restrict_to_window(1).tensor is None
