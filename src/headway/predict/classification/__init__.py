"""Classify texts, and explain a label in terms of the words in the text."""
