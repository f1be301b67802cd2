"""Sealed sums: two aggregators add up shares that neither of them can read."""
