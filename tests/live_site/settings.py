"""Settings of the web process that the tests of live pages talk to."""

from pathlib import Path
from typing import Any

from console import settings as product
from tests.settings import *  # noqa: F403

_pages: dict[str, Any] = product.TEMPLATES[0]

ROOT_URLCONF = "tests.live_site.urls"
TEMPLATES = [_pages | {"DIRS": [product.BASE_DIR / "templates", Path(__file__).parent / "templates"]}]
LIVE_HEARTBEAT_S = 1.0
