"""Attacks: what a curious server can infer from the messages it received."""
