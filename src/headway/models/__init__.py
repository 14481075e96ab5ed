"""One architecture per file, with its configuration; :mod:`headway.models.registry` lists them."""
