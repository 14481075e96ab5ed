"""One architecture a file, its configuration beside it; :mod:`headway.models.build` joins them."""
