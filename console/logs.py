"""One line per event, so that a log can be read with grep and no event can pretend to be two."""

import logging
import time


class OneLine(logging.Formatter):
    """Time in UTC, level, logger, message; a traceback is folded into the same line."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s[%(process)d] %(message)s", "%Y-%m-%dT%H:%M:%S"
        )

    def format(self, record: logging.LogRecord) -> str:
        # Text from a model or a customer may hold line breaks and control characters.
        return "".join(
            character if character.isprintable() else "\\n" if character == "\n" else f"\\x{ord(character):02x}"
            for character in super().format(record)
        )
