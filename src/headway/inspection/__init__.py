"""Seeing what happens: learning curves of training runs."""
