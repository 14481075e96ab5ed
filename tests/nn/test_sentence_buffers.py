"""Sentences leave buffers, which are shortened, lengthened and joined meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.nn.sentence_buffers import SentenceBuffers

HEADS, SLOTS = 2, 5


def by_sentence(tensor: Tensor) -> Tensor:
    return tensor.view(-1, HEADS, *tensor.shape[1:])


def two(sentences: int) -> list[Tensor]:
    return [torch.randn(sentences * HEADS, SLOTS, width) for width in (2, 3)]


@pytest.mark.parametrize("sentences", [[0, 1, 2, 3], [0, 3, 2], [3], [1, 0], [2, 3, 0, 1], []])
def test_who_stays_is_found_by_home_and_moved_when_asked(sentences: list[int]) -> None:
    tensors = two(4)
    expected = [by_sentence(tensor.clone())[sentences] for tensor in tensors]
    buffers = SentenceBuffers(list(tensors), HEADS)
    buffers.keep(torch.tensor(sentences, dtype=torch.long))
    for found, before, kept in zip(buffers.tensors, tensors, expected, strict=True):
        assert found.data_ptr() == before.data_ptr(), "nothing is copied yet"
        assert torch.equal(by_sentence(found)[buffers.homes], kept)
    buffers.settle()
    for found, kept in zip(buffers.tensors, expected, strict=True):
        assert torch.equal(by_sentence(found), kept)
        assert found.is_contiguous()


@pytest.mark.parametrize("leaving_first", [False, True])
def test_slots_are_picked_lengthened_and_joined_by_home(leaving_first: bool) -> None:
    tensors, others = two(3), two(2)
    expected, theirs = ([by_sentence(tensor.clone()) for tensor in each] for each in (tensors, others))
    order = torch.tensor([2, 0])
    buffers, joining = SentenceBuffers(tensors, HEADS), SentenceBuffers(others, HEADS)
    if leaving_first:
        buffers.keep(order)
        joining.keep(torch.tensor([1]))
        expected, theirs = [tensor[order] for tensor in expected], [tensor[1:] for tensor in theirs]
    buffers.join(joining)
    expected = [torch.cat(pair) for pair in zip(expected, theirs, strict=True)]
    if leaving_first:
        buffers.keep(order)
        expected = [tensor[order] for tensor in expected]
    slots = torch.stack([torch.randperm(SLOTS)[:3] for _ in buffers.homes])
    buffers.pick(slots)
    expected = [torch.stack([of[:, chosen] for of, chosen in zip(tensor, slots, strict=True)]) for tensor in expected]
    buffers.keep(torch.tensor([1]))
    buffers.resize(7, filled=2)
    for found, kept in zip(buffers.tensors, expected, strict=True):
        assert found.shape == (HEADS, 7, kept.size(3))
        assert torch.equal(by_sentence(found)[:, :, :2], kept[1:2, :, :2])
