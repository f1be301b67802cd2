"""NVFlare integration: kits, processes, jobs and transport; no method code."""
