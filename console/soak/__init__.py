"""The soak: an installation of its own whose every process is killed at random, and what has to be true afterwards."""
