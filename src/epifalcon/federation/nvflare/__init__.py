"""NVFlare's plumbing: kits, processes, jobs and calls, and nothing of the method.

The only folder that knows ``nvflare``. The engine above it sees bytes in and
bytes out: a site answers a call, a coordinator asks all sites at once.
"""
