"""Texts with tags or placeholders: find the segments to translate, and insert their marks into the translations."""
