"""Drawings of architectures, made from the models themselves: layout, SVG, and one file for each family of drawings."""
