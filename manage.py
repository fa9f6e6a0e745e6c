#!/usr/bin/env python
"""Run a command of Longwatch in the environment that `bin/manage` prepared."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"{error}")
    except OperationalError as error:
        sys.exit(f"The database does not answer: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
