"""One file for each API: its routes, its fields and its errors, in its own form."""
