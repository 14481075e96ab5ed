"""The inner loops of IBM model 1 (:mod:`headway.text.lexicon`)."""

from __future__ import annotations

from headway.kernels.jit import Array, jit_exact


@jit_exact
def add_expected_counts(occurrences: Array, choices: Array, probabilities: Array, counts: Array) -> None:
    """Perform the expectation step: add the expected count of each token pair to ``counts``.

    Args:
        occurrences: Indices of the distinct pairs of each target token and the source tokens of its sentence, int32
            (P,), in the order of the target tokens.
        choices: Number of source tokens that each target token is paired with, int64 (N,).
        probabilities: Probability of each distinct pair, float64 (K,).
        counts: Expected count of each distinct pair, float64 (K,).
    """
    start = 0
    for token in range(len(choices)):
        end = start + choices[token]
        total = 0.0
        for place in range(start, end):
            total += probabilities[occurrences[place]]
        for place in range(start, end):
            pair = occurrences[place]
            counts[pair] += probabilities[pair] / total
        start = end


@jit_exact
def compute_mean_gains(
    sources: Array,
    source_starts: Array,
    targets: Array,
    target_starts: Array,
    row_starts: Array,
    row_tokens: Array,
    gains: Array,
    unseen_gains: Array,
    empty_word: int,
    out: Array,
) -> None:
    """Compute, for each target token, the mean gain over the source tokens of its sentence and the empty word.

    Args:
        sources: Source tokens of all sentences, int32.
        source_starts: Start of each sentence in ``sources``, followed by the end of the last sentence, int64 (N + 1,).
        targets: Target tokens of all sentences, int32.
        target_starts: Start of each sentence in ``targets``, followed by the end of the last sentence, int64 (N + 1,).
        row_starts: Start of each source token's row in ``row_tokens``, followed by the end of the last row, int64.
        row_tokens: Target tokens that each source token generates, ascending within a row, int32 (K,).
        gains: Gain of each pair in ``row_tokens``, float32 (K,).
        unseen_gains: Gain of all other target tokens, for each source token, float32.
        empty_word: Source token that represents the empty word.
        out: Output array for the mean gains, float32, with the length of ``targets``.
    """
    for sentence in range(len(source_starts) - 1):
        first, last = source_starts[sentence], source_starts[sentence + 1]
        for place in range(target_starts[sentence], target_starts[sentence + 1]):
            wanted = targets[place]
            total = 0.0
            for position in range(first, last + 1):
                source = empty_word if position == last else sources[position]
                low, high = row_starts[source], row_starts[source + 1]
                end = high
                while low < high:
                    middle = (low + high) // 2
                    if row_tokens[middle] < wanted:
                        low = middle + 1
                    else:
                        high = middle
                total += gains[low] if low < end and row_tokens[low] == wanted else unseen_gains[source]
            out[place] = total / (last - first + 1)
