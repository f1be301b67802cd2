"""Federated training with privacy: cohorts, messages, rounds, engines."""
