"""A Django app whose agents play every kind of effect at a real receiver (the sandbox shop)."""
