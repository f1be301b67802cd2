"""Mobility data: clock, regions, traces, flows and the mobility model."""
