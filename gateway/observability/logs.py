"""Structured logs on standard error: one line per event, as JSON or as text."""

import enum
import json
import logging
import sys
from collections.abc import Collection
from datetime import UTC, datetime


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


def configure(format: LogFormat, level: str) -> None:
    """Send all logs of the process to standard error, replacing the previous handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The server logs its own start and stop.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def current_settings() -> tuple[LogFormat, int]:
    """The current format, and the lowest level that is logged."""
    root = logging.getLogger()
    formats = [handler.formatter.log_format for handler in root.handlers if isinstance(handler.formatter, _Formatter)]
    return formats[0] if formats else LogFormat.TEXT, root.getEffectiveLevel()


def reconfigure(format: LogFormat, levels: Collection[int]) -> None:
    """Log only the lines of these levels from now on, in this format."""
    root = logging.getLogger()
    root.setLevel(min(levels, default=logging.CRITICAL + 1))
    for handler in root.handlers:
        if isinstance(handler.formatter, _Formatter):
            handler.setFormatter(_Formatter(format))
            handler.filters = [lambda record: record.levelno in levels]


def log(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log an event with named values, which become keys of the JSON line."""
    logger.log(level, event, extra={"fields": fields}, stacklevel=2)


class _Formatter(logging.Formatter):
    def __init__(self, format: LogFormat) -> None:
        super().__init__()
        self.log_format = format

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.getMessage()
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self.log_format is LogFormat.JSON:
            line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "event": event} | fields
            return json.dumps(line, default=str)
        values = "".join(f" {name}={value}" for name, value in fields.items())
        return f"{time} {record.levelname.lower()} {record.name}: {event}{values}"
