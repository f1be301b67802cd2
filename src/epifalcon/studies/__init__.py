"""Which runs, which tables, which pictures."""
