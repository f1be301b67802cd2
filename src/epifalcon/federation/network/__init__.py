"""Server and site sides of a run over sites, independent of the method."""
