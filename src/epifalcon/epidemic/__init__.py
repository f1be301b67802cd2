"""epidemic."""
