"""Texts with tags or placeholders: the segments to translate, and the marks that their translations must contain."""
