"""Trainable models: the region model and the person model."""
