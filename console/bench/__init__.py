"""Benchmarks of the whole engine, each on a throwaway installation: a database of its own and the real processes.

`house` makes that installation and takes it away again; the benchmarks run inside it, one module each, and are asked by
`manage.py bench`. The package is also an app there, so that every process finds the agents that do the work.
"""
