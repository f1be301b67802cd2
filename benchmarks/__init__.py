"""Benchmarks: each file has ``run() -> dict``; ``run.py`` runs them."""
