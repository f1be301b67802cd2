"""Rivals: what every result stands beside."""
