"""Score the possible answers to questions with a language model: the log-probability of each token of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, takewhile

from headway.engine import Precision
from headway.errors import LengthError
from headway.predict.language_modeling.language_model import LanguageModel

TokenLogProbs = tuple[tuple[float, ...], ...]
"""For each answer, the log-probabilities of its tokens, in nats."""


def score_answers(
    model: LanguageModel,
    prompts: Sequence[str],
    answers: Sequence[Sequence[str]],
    *,
    precision: Precision = "float32",
) -> list[TokenLogProbs | LengthError]:
    """Return the log-probabilities of each answer's tokens after the prompt.

    The prompt and an answer are tokenized as one text. All answers to a question are scored from the same position:
    the end of the longest prefix that the tokens of the prompt and of the prompt with each answer have in common. The
    input begins with BOS. EOS after an answer is not scored.

    Args:
        model: The language model that scores the answers.
        prompts: For each question, the text before the answers.
        answers: The answers to each question. If a space separates prompt and answer, it is part of the answer.
        precision: Precision of the model; see :meth:`LanguageModel.score`.

    Returns:
        For each question, the scores, or an error if the prompt with an answer does not fit into the model's context.
    """
    texts = [[prompt + answer for answer in several] for prompt, several in zip(prompts, answers, strict=True)]
    read = list(map(model.bundle.normalized, [*prompts, *chain.from_iterable(texts)]))
    encoded = iter(model.bundle.tokenizer.encode_batch(read))
    prompt_ids = list(islice(encoded, len(prompts)))
    answer_ids = [list(islice(encoded, len(several))) for several in texts]
    errors = [_length_error(model.context_length, max(map(len, ids))) for ids in answer_ids]
    fitting = [text for several, error in zip(texts, errors, strict=True) if error is None for text in several]
    scored = iter(model.score(fitting, precision=precision))
    results: list[TokenLogProbs | LengthError] = []
    for start, ids, error in zip(prompt_ids, answer_ids, errors, strict=True):
        first = _first_answer_position(start, ids)
        results.append(error or tuple(text.token_log_probabilities[first:] for text in islice(scored, len(ids))))
    return results


def _first_answer_position(prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> int:
    """Return the length of the prefix that the prompt and all answers share, so that at least one token follows it."""
    common = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(prompt, *answers, strict=False)))
    return min(common, *(len(ids) - 1 for ids in answers))


def _length_error(context: int | None, num_tokens: int) -> LengthError | None:
    """Return an error if a prompt with its longest answer does not fit into the context, or None."""
    if context is None or num_tokens < context:
        return None
    return LengthError(
        f"the question, its examples and an answer have {num_tokens:,} tokens, but the model's context has {context:,} "
        "with the begin symbol; use fewer examples, or shorten the question"
    )
