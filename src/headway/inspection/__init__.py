"""Inspect what a model attends to and how it makes its predictions: capture, figures, the HTML page."""
