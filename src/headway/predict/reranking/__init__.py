"""Rank candidate translations by their agreement, by the scores of models, or by a noisy channel."""
