"""Benchmarks: each file has ``run() -> dict``; ``run.py`` runs them."""

# First: it sets how torch's threads wait, which torch reads when it is imported.
import epifalcon  # noqa: F401
