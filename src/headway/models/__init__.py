"""One architecture a file, its configuration beside it; :mod:`headway.models.registry` lists them."""
