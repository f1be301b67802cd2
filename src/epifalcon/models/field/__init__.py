"""Falcon Field's inference: people as chains, places as sums, regions as factors."""
