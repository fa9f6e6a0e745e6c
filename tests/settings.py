"""The product's own settings, with the agents that the tests run."""

from console.settings import *  # noqa: F403
from console.settings import INSTALLED_APPS

UNDO_S = 0.0  # a test that wants a decision to wait says so
INSTALLED_APPS = [*INSTALLED_APPS, "tests.agency", "tests.thinkers"]
