"""The sandbox: a small shop, a model that rehearses, and the agents that work there."""
