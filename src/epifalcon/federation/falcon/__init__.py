"""Falcon over sites: the server side and the site side of a run."""
