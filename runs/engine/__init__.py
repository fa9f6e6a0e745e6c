"""What advances a run: the slice, the act step, the briefing, the built-in tools."""
