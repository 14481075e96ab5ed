"""Inspect a masked language model: its attention over a text, and its prediction for each hidden token.

In a text with [MASK], all masks are predicted in a single pass, in which the attention is recorded. In a text without
[MASK], each token is hidden in turn, as in scoring, so that it is predicted from all others; the attention is recorded
in a separate pass in which nothing is hidden.
"""

from __future__ import annotations

import torch

from headway.errors import ConfigError, DataError
from headway.inspection.capture import capture
from headway.inspection.results import AttentionMap, Inspection, check_attention_size
from headway.predict import MaskedLanguageModel
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES, predicted_tokens


@torch.inference_mode()
def inspect_masked_language_model(
    masked_language_model: MaskedLanguageModel,
    text: str,
    *,
    name: str = "model",
    alternatives: int = DEFAULT_ALTERNATIVES,
) -> Inspection:
    """Return the attention and the predictions of a masked language model for a text.

    Args:
        masked_language_model: The masked language model.
        text: The text, with or without [MASK].
        name: The model's name, for titles.
        alternatives: Number of most probable tokens to list for each hidden token.

    Raises:
        HeadwayError: The text is empty or too long, or an option is out of range.
    """
    if alternatives < 0:
        raise ConfigError(f"alternatives = {alternatives}: expected 0 or more")
    bundle = masked_language_model.bundle
    model, tokenizer = bundle.model, bundle.tokenizer
    ids = masked_language_model.encode(text)
    if len(ids) == 2:  # BOS and EOS
        raise DataError("the text is empty: there is nothing to inspect; pass a text")
    check_attention_size(model, len(ids))
    with capture(model) as seen:
        model.hidden(torch.tensor([ids], device=masked_language_model.device))
    masks = [position for position, index in enumerate(ids) if index == masked_language_model.mask_id]
    positions = torch.tensor(masks or range(1, len(ids) - 1))
    rows = torch.tensor(ids).repeat(len(positions), 1)
    rows[torch.arange(len(rows)), positions] = masked_language_model.mask_id
    states = masked_language_model.hidden_states(rows, positions)
    if masks:
        predicted = masked_language_model.most_probable_tokens(states)
        filled = list(ids)
        for position, index in zip(masks, predicted, strict=True):
            filled[position] = index
    else:
        predicted = list(ids[1:-1])
    return Inspection(
        model=name,
        architecture=model.config.kind,
        source=text,
        source_tokens=tuple(tokenizer.display(ids)),
        maps=tuple(
            AttentionMap(
                captured.kind,
                captured.layer,
                tuple(range(1, captured.weights.size(1) + 1)),
                captured.weights[0],
                captured.name,
            )
            for captured in seen.maps
            if captured.kind
        ),
        target=tokenizer.decode(filled[1:-1]) if masks else None,
        steps=tuple(predicted_tokens(model.projection, states, predicted, 0, alternatives, tokenizer)),
        hidden_positions=tuple(positions.tolist()),
    )
