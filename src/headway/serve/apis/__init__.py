"""One file for each API: its routes, its fields and its error format."""
