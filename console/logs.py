"""One line per event, so that a log can be read with grep and no event can pretend to be two."""

import logging
from datetime import UTC, datetime


class OneLine(logging.Formatter):
    """Time in UTC, level, logger, message; a traceback is folded into the same line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        from runs import vault

        text = vault.redact(super().format(record))
        if text.isprintable():
            return text
        # Text from a model or a customer may hold line breaks and control characters.
        return "".join(
            character if character.isprintable() else "\\n" if character == "\n" else f"\\x{ord(character):02x}"
            for character in text
        )


class WithoutReadiness(logging.Filter):
    """Drops what Django writes of a 503 to the question whether all is ready: whoever asks it reads the answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        path = getattr(getattr(record, "request", None), "path", "")
        return not (path.endswith("/health/ready") and getattr(record, "status_code", 0) == 503)
