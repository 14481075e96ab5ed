"""Classify texts, and explain a label by the words of the text."""
