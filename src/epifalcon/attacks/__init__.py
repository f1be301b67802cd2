"""Attacks: what a curious server can tell from what it saw."""
