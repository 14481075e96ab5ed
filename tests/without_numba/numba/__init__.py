"""Stands in for Numba where it is not installed: ``tests/settings.py`` puts this folder first on the import path."""

raise ModuleNotFoundError("No module named 'numba'", name="numba")
