"""Headway's own API, which returns the results of the Python API as JSON.

There is one file for each kind of model, and one for each kind of stored object.
"""
