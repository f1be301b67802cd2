"""Studies: planned runs, tables and plots."""
