"""Metrics of predictions, recalibration, and uncertainty of metrics."""
