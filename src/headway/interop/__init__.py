"""Models of other toolkits: read, written and run."""
