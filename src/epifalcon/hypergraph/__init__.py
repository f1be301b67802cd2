"""Hypergraph of people and regions, and propagation of rows along its edges."""
