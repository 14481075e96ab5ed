"""Inspect what a model attends to and how it makes its predictions: capture weights, draw figures, render a page."""
