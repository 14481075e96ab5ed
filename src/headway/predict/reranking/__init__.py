"""Rank candidate translations by their agreement, by model scores, or by a noisy channel."""
