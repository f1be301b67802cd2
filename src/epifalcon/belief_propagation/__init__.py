"""Belief propagation on the hypergraph: people as SEIR chains, regions as factors."""
