"""The hypergraph of people and regions, and propagation of rows along it."""
