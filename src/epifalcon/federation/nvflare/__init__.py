"""NVFlare integration, independent of the method: kits, processes, jobs, transport."""
