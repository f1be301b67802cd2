"""Pseudo traces: made-up places among which the true ones hide."""
