"""What a translation model that was imported says of a given target."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.bundle import Bundle
from headway.text.base import BOS, EOS


def source_ids(bundle: Bundle, text: str) -> list[int]:
    return bundle.token_template.fill().add_to_source(bundle.source_tokenizer.encode(text))


def log_probabilities(bundle: Bundle, text: str, reference: str) -> Tensor:
    """Return Headway's log-probabilities of each target token and of the end symbol."""
    target = bundle.target_tokenizer.encode(reference)
    with torch.no_grad():
        logits = bundle.model(torch.tensor([source_ids(bundle, text)]), torch.tensor([[BOS, *target]]))
    chosen: Tensor = logits.log_softmax(-1)[0].gather(1, torch.tensor([*target, EOS]).unsqueeze(1))[:, 0]
    return chosen
