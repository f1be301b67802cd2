"""Studies that are not in the paper."""
