"""Truncates the log files of programs that run for a long time."""

from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 8 << 20
KEPT_BYTES = 1 << 20

_BLOCK_BYTES = 512


def truncate_log(log: Path) -> None:
    """Empty a log that takes more than LIMIT_BYTES, and keep its end as `NAME.old`; its writer goes on as before.

    Lines that are written at that moment may be lost. A writer that does not append leaves a hole where the file was,
    which takes no space.
    """
    with suppress(OSError), log.open("r+b") as file:
        about = log.stat()
        if about.st_blocks * _BLOCK_BYTES > LIMIT_BYTES:
            file.seek(max(0, about.st_size - KEPT_BYTES))
            with suppress(OSError):  # a full disk has no room for the old lines
                log.with_name(f"{log.name}.old").write_bytes(file.read(KEPT_BYTES))
            file.truncate(0)
