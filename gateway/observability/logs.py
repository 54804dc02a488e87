"""Structured logs on standard error: one line an event, as JSON or as text."""

import enum
import json
import logging
import sys
from collections.abc import Collection
from datetime import UTC, datetime


class LogFormat(enum.StrEnum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


def configure(format: LogFormat, level: str) -> None:
    """Send all logs of the process to standard error, in place of what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # What uvicorn tells of its start and stop, this server tells itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def configured() -> tuple[LogFormat, int]:
    """How lines are written by now, and the lowest level of those that are."""
    root = logging.getLogger()
    forms = [handler.formatter.form for handler in root.handlers if isinstance(handler.formatter, _Formatter)]
    return forms[0] if forms else LogFormat.TEXT, root.getEffectiveLevel()


def reconfigure(format: LogFormat, levels: Collection[int]) -> None:
    """Write just the lines of these levels from now on, in this format."""
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
        self.form = format

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.getMessage()
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self.form is LogFormat.JSON:
            line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "event": event} | fields
            return json.dumps(line, default=str)
        values = "".join(f" {name}={value}" for name, value in fields.items())
        return f"{time} {record.levelname.lower()} {record.name}: {event}{values}"
