"""Findings of a run, in a file that is complete after every step."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SHORT_UUID = re.compile(r"\b((?:GPU|MIG)-)([0-9a-f]{4,8}[0-9a-f-]*)|\b([0-9a-f]{8})\b")
"""The beginning of a UUID, as the tables of MPS print it."""
_SERIAL = re.compile(r"(?im)^(.*\b(?:serial|board id|part number)\b[^:\n]*: *).*$")


class Skipped(Exception):
    """A part cannot run here; the message gives the reason."""


class Record:
    """The parts and their findings; the file has a placeholder for each distinct UUID."""

    def __init__(self, directory: Path, *, dry_run: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "gpu_check.json"
        self._uuids: dict[str, str] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        self._head = {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "dry_run": dry_run}

    def part(self, name: str) -> dict[str, Any]:
        """The findings of a part, which it fills in."""
        return self.parts.setdefault(name, {})

    def save(self) -> Path:
        """Write all findings so far; the file is replaced atomically."""
        text = json.dumps({**self._head, "parts": self.parts}, indent=1, default=str)
        scratch = self._path.with_suffix(".part")
        scratch.write_text(self._scrubbed(text), encoding="utf-8")
        scratch.replace(self._path)
        return self._path

    def _scrubbed(self, text: str) -> str:
        def made_up(match: re.Match[str]) -> str:
            number = len(self._uuids)
            return self._uuids.setdefault(match[0], f"{number:08x}-0000-0000-0000-000000000000")

        def shortened(match: re.Match[str]) -> str:
            short = match[2] or match[3]
            found = next((made for uuid, made in self._uuids.items() if uuid.startswith(short)), short)
            return f"{match[1] or ''}{found[: len(short)]}"

        text = text.replace(sys.executable, "python3")
        return _SERIAL.sub(r"\1removed", _SHORT_UUID.sub(shortened, _UUID.sub(made_up, text)))


def run(
    command: Sequence[str], text: str = "", timeout_s: float = 15, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a command; returns its transcript: input, output, exit status (None: it did not end in time), milliseconds.

    Output goes to files, since a daemon that the command starts may keep a pipe open as long as it runs.
    """
    begun = time.monotonic()
    found: dict[str, Any] = {"command": text.strip() or " ".join(command)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            status = subprocess.run(
                command, input=text.encode(), env=env, timeout=timeout_s, stdout=out, stderr=err, check=False
            ).returncode
            found |= {"rc": status, "out": _written(out), "err": _written(err)}
        except subprocess.TimeoutExpired:
            found |= {"rc": None, "out": _written(out), "err": "no end"}
        except OSError as error:
            found |= {"rc": None, "out": "", "err": str(error)}
    return {**found, "ms": round((time.monotonic() - begun) * 1000, 1)}


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
