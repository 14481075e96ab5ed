"""Inspect a language model: record the attention in a single pass over a prompt and its continuation.

The token at position t is predicted from BOS and the tokens before it. Row t of the attention is therefore the
attention with which token t was predicted, as in the decoder of a translation model. The input begins with BOS as in
scoring, even if the tokenizer of an imported model puts nothing before a prompt.
"""

from __future__ import annotations

import torch

from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.capture import capture
from headway.inspection.results import AttentionMap, Inspection, check_attention_size
from headway.predict import LanguageModel
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES, predicted_tokens
from headway.text.base import BOS, EOS

DEFAULT_NEW_TOKENS = 20


@torch.inference_mode()
def inspect_language_model(
    language_model: LanguageModel,
    prompt: str,
    continuation: str | None = None,
    *,
    name: str = "model",
    alternatives: int = DEFAULT_ALTERNATIVES,
    max_new_tokens: int = DEFAULT_NEW_TOKENS,
) -> Inspection:
    """Return the attention and the predictions of a language model for a prompt and its continuation.

    Args:
        language_model: The language model.
        prompt: The beginning of the text. It may be empty if there is a continuation.
        continuation: The rest of the text. None means the model's own continuation, which takes the most probable token
            at each step.
        name: The model's name, for titles.
        alternatives: Number of most probable tokens to list at each position.
        max_new_tokens: Maximum length of the model's own continuation. 0 inspects only the prompt.

    Raises:
        HeadwayError: The text is empty or too long, or an option is out of range.
    """
    if alternatives < 0 or max_new_tokens < 0:
        raise ConfigError(f"alternatives = {alternatives}, max_new_tokens = {max_new_tokens}: expected 0 or more")
    bundle, given = language_model.bundle, continuation is not None
    read = bundle.normalized(prompt)
    if continuation is not None:
        prompt_ids, new_ids = map(tuple, bundle.tokenizer.encode_batch([read, bundle.normalized(continuation)]))
    else:
        prompt_ids, new_ids, continuation = tuple(bundle.tokenizer.encode(read)), (), ""
        if max_new_tokens:
            (generated,) = language_model.generate(
                prompt, temperature=0, beam_size=1, repetition_penalty=1.0, max_new_tokens=max_new_tokens
            )
            new_ids, continuation = generated.ids, generated.text
    predicted = [*prompt_ids, *new_ids, EOS]
    if len(predicted) == 1:
        raise DataError("the text is empty: there is nothing to inspect; pass a text")
    model = bundle.model
    if model.max_length is not None and len(predicted) > model.max_length:
        raise LengthError(
            f"a text of {len(predicted) - 1} tokens and the begin symbol do not fit into the {model.max_length} "
            "positions that this model has learned; inspect a part of it"
        )
    check_attention_size(model, 0, len(predicted))
    with capture(model) as seen:
        hidden = model.hidden(torch.tensor([[BOS, *predicted[:-1]]], device=language_model.device))[0]
    return Inspection(
        model=name,
        architecture=model.config.kind,
        source=prompt,
        source_tokens=tuple(bundle.tokenizer.display(prompt_ids)),
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
        target=continuation,
        target_given=given,
        steps=tuple(predicted_tokens(model.projection, hidden, predicted, 0, alternatives, bundle.tokenizer)),
        prompt_length=len(prompt_ids),
    )
