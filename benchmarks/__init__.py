"""Benchmarks: each file has ``run() -> dict``; ``run.py`` runs them."""

# Imported first: it sets the wait policy of threads, which torch reads on import.
import epifalcon  # noqa: F401
