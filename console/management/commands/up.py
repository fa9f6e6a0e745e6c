"""`manage.py up`: all of Longwatch on this machine, in the foreground."""

import json
import logging
import os
import shlex
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from console.launch import CannotLaunch, Launch, Prepared
from runs.arguments import whole
from runs.management.usage import OneLineUsage

DEMO_PACE_S = 1.5  # slow enough to watch the example runs think


class Command(OneLineUsage):
    help = "Start everything on this machine and keep it running until ctrl-C."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=whole(0, 65_535), default=8000, help="of the console, on 127.0.0.1 (0: a free one)"
        )
        parser.add_argument("--data", type=Path, default=settings.DATA_DIR, metavar="DIR", help="the data folder")
        parser.add_argument("--no-demo", action="store_true", help="start no example runs")
        parser.add_argument(
            "--workers", type=whole(1, 64), default=settings.WORKERS, metavar="N", help="worker processes"
        )
        parser.add_argument("--prepare-only", action="store_true", help="make everything ready and start nothing")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one line of JSON when ready")

    def handle(
        self,
        *,
        port: int,
        data: Path,
        workers: int,
        no_demo: bool,
        prepare_only: bool,
        as_json: bool,
        **options: Any,
    ) -> None:
        # Its processes write to logs of their own; here is said only what went wrong.
        logging.getLogger().setLevel(logging.WARNING)
        pace_s = 0.0 if no_demo else DEMO_PACE_S
        launch = Launch(port=port, data_dir=data.expanduser().absolute(), workers=workers, pace_s=pace_s)
        try:
            if not prepare_only:
                launch.take_port()
            prepared = launch.prepare()
            if not prepare_only:
                launch.start()
            ready = not prepare_only and launch.wait_ready()
            if ready and not no_demo:
                launch.start_demo()
            if prepare_only or ready:
                write = _write_json if as_json else _write_prepared if prepare_only else _write_text
                self.stdout.write(write(launch, prepared))
                self.stdout.flush()
            if not prepare_only:
                launch.run()
        except (CannotLaunch, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        finally:
            launch.stop()


def _write_json(launch: Launch, prepared: Prepared) -> str:
    return json.dumps(
        {
            "url": launch.url,
            "pid": os.getpid(),
            "database_url": launch.database_url,
            "operator": prepared.operator,
            "password": prepared.password,
            "shop_url": launch.shop_url,
            "sign_in_url": _link(launch, prepared),
        }
    )


def _write_text(launch: Launch, prepared: Prepared) -> str:
    lines = [f"Longwatch is ready at {launch.url} ({settings.ENVIRONMENT})"]
    if settings.ANTHROPIC_API_KEY is None:
        lines.append("  A rehearsal: a local model plays the agents. Set ANTHROPIC_API_KEY to run them on Claude.")
    if link := _link(launch, prepared):
        lines.append(f"  Sign in     {link}  (once, within 15 minutes)")
    if prepared.password:
        lines.append(f"  or as       {prepared.operator}, password {prepared.password}  (shown only now)")
    # Another data folder has to be named to every command.
    folder = "" if launch.data_dir == settings.DATA_DIR else f"LONGWATCH_DATA={shlex.quote(str(launch.data_dir))} "
    lines.append(f"  Try         {folder}bin/manage rehearse refund-desk")
    lines.append(f"  Logs        {launch.log_dir}")
    lines.append("  Stop        ctrl-C")
    return "\n".join(lines)


def _write_prepared(launch: Launch, prepared: Prepared) -> str:
    lines = [f"The database is up to date ({settings.ENVIRONMENT}). Nothing was started: bin/up does that."]
    if prepared.password:
        lines.append(f"  Sign in as  {prepared.operator}, password {prepared.password}  (shown only now)")
    return "\n".join(lines)


def _link(launch: Launch, prepared: Prepared) -> str | None:
    return f"{launch.url}/sign-in?token={prepared.sign_in_token}" if prepared.sign_in_token else None
