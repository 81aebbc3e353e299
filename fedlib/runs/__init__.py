"""A run: its settings, its key, its rounds, its result and what is told of it."""
