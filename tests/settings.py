"""The product's own settings, with the agents that the tests run."""

from console.settings import *  # noqa: F403
from console.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.agency", "tests.thinkers"]
