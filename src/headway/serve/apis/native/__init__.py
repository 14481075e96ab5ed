"""The service's own API: the results of the Python objects as JSON.

One file for each kind of model, and for each store.
"""
