"""Outbreak simulation, test results and ground truth."""
