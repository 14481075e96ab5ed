"""Model architectures, one per file with its configuration. :mod:`headway.models.registry` lists all of them."""
