"""Who met where: the hypergraph of people and places, and passing rows along it."""
