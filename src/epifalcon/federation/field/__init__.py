"""Falcon Field's exchanges: cohorts, what leaves them, and the receipts of it."""
