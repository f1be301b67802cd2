"""NVFlare's plumbing: kits, processes, jobs and calls; nothing of the method."""
