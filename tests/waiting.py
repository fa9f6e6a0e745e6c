"""Wait for what a test is about, and fail by name when it does not come."""

from console.soak.waiting import wait_until

__all__ = ["wait_until"]
