"""`manage.py modelgateway`: the process that makes all model calls."""

import asyncio
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from runs import processes
from runs.arguments import whole
from runs.gateway.process import CAPACITY, Gateway
from runs.gateway.provider import Credential
from runs.management.usage import OneLineUsage

# A rehearsal server asks for no key, but the SDK does.
REHEARSAL_KEY = "rehearsal"


class Command(OneLineUsage):
    help = "Make the model calls of all runs until SIGTERM, which lets those in flight finish."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--capacity", type=whole(1, 10_000), default=CAPACITY, help="calls in flight at most")

    def handle(self, *, capacity: int, **options: Any) -> None:
        processes.spare_collector()
        asyncio.run(_run(capacity))


async def _run(capacity: int) -> None:
    gateway = Gateway(read_credential(), capacity=capacity)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.stop)
    await gateway.run()


def read_credential() -> Credential | None:
    """The key from the settings; None when there is neither a key nor a server of our own to call."""
    key, base_url = settings.ANTHROPIC_API_KEY, settings.ANTHROPIC_BASE_URL
    if key is None and base_url is None:
        return None
    return Credential(key=key or REHEARSAL_KEY, base_url=base_url)
