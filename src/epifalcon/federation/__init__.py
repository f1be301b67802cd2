"""Where models and privacy meet: cohorts, messages, rounds, engines."""
