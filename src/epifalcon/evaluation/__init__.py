"""Metrics of predictions, their uncertainty, and recalibration."""
