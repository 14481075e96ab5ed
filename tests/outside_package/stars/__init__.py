"""A package that adds a task and an architecture to Headway, as a package installed beside it does."""
