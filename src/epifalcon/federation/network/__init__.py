"""Method-independent server and site sides of runs over sites with private data."""
