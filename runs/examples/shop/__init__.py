"""A small real HTTP service with money in it: `python -m runs.examples.shop --port N --data DIR`.

Standard library only, and nothing of Django: the shop stands for the outside world, so it shares no process,
no storage and no code path with what is tested against it.
"""
