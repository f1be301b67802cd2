"""Runs over sites that hold their own people: the conversation, both sides of it."""
