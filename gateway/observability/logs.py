"""Structured logs on standard error, or in a file: one line per event, as JSON or as text."""

import enum
import json
import logging
import sys
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

FILE_BYTES = 100 << 20
"""The most bytes of a log file."""
MOST_FILES = 10
"""The number of log files that are kept, with the one that is written."""


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    TEXT = "text"
    JSON = "json"


def configure(format: LogFormat, level: str, file: Path | None = None) -> None:
    """Send all logs of the process to standard error, or append them to a file, replacing the previous handlers.

    Raises OSError for a file that cannot be opened.
    """
    handler = _StandardError() if file is None else _LogFile(file)
    handler.setFormatter(_Formatter(format, terminal=file is None and sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The server logs its own start and stop.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("hpack").setLevel(logging.WARNING)  # it logs headers, some of which are keys


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
            handler.setFormatter(_Formatter(format, terminal=handler.formatter.terminal))
            handler.filters = [lambda record: record.levelno in levels]


def reopen() -> None:
    """Open the log file again by its name, in case that it was moved away to be kept; standard error stays.

    Where it cannot be opened, lines go to the old file.
    """
    for handler in logging.getLogger().handlers:
        if not isinstance(handler, _LogFile):
            continue
        try:
            handler.reopen()
        except OSError as error:
            log(logging.getLogger(__name__), logging.ERROR, "the log file cannot be opened again", reason=error)
        else:
            log(logging.getLogger(__name__), logging.INFO, "log file opened again")


def log(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log an event with named values, which become keys of the JSON line."""
    logger.log(level, event, extra={"fields": fields}, stacklevel=2)


def log_lines(logger: logging.Logger, level: int, event: str, lines: Sequence[str], **fields: object) -> None:
    """Log an event. As text on a terminal, `lines` are printed below it in place of the named values."""
    logger.log(level, event, extra={"fields": fields, "lines": lines}, stacklevel=2)


class _StandardError(logging.StreamHandler[TextIO]):
    """Standard error as it is when a line is written: what shows progress there stands in for it meanwhile."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self.stream = sys.stderr
        super().emit(record)


class _LogFile(RotatingFileHandler):
    """A log file. Lines that cannot be written, as on a full disk, are lost, which standard error says once.

    A file that would have more than `FILE_BYTES` gets a number, and a new one begins; there are at most `MOST_FILES`.
    """

    def __init__(self, file: Path) -> None:
        # Like standard error, it takes names that are not text.
        super().__init__(
            file, maxBytes=FILE_BYTES, backupCount=MOST_FILES - 1, encoding="utf-8", errors="backslashreplace"
        )
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        before = self._lost
        super().emit(record)
        if self._lost == before:
            self._lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is the library's
        """Note a line that is lost."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._lost += 1
        if self._lost == 1:
            with suppress(OSError):
                print(f"sluice: {self.baseFilename}: log lines are lost: {error}", file=sys.stderr, flush=True)

    def reopen(self) -> None:
        """Open the file by its name again. Raises OSError, and goes on with the old one then."""
        opened = self._open()
        with self.lock or nullcontext():
            before, self.stream = self.stream, opened
        if before is not None:
            with suppress(OSError):  # what is left of lost lines
                before.close()


class _Formatter(logging.Formatter):
    def __init__(self, format: LogFormat, *, terminal: bool) -> None:
        super().__init__()
        self.log_format = format
        self.terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.getMessage()
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self.log_format is LogFormat.JSON:
            line = {"time": time, "level": record.levelname.lower(), "logger": record.name, "event": event} | fields
            return json.dumps(line, default=str)
        if self.terminal and (lines := getattr(record, "lines", ())):
            values = "".join(f"\n  {line}" for line in lines)
        else:
            values = "".join(f" {name}={value}" for name, value in fields.items())
        return f"{time} {record.levelname.lower()} {record.name}: {event}{values}"
