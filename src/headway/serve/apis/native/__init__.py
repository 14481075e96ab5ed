"""The service's own API: what the Python objects give, as JSON. One file for each kind of model, and for each store."""
