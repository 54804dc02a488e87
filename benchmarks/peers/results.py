"""The figures of all rounds in a JSON file, which is written after each server, so that a run can go on from it."""

import json
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class OtherRun(Exception):
    """The file holds figures that were measured another way."""


class Results:
    """Figures by round and server.

    `settings` tells how they are measured: figures of other settings are refused with OtherRun. `entries` has one for
    each server and round: `round`, `peer`, and `failed` or what was measured.
    """

    def __init__(self, path: Path, settings: Figures) -> None:
        self._path = path
        self.settings = settings
        self.entries: list[Figures] = []
        self.peers: Figures = {}
        """The version of each server, or the reason why it is not installed."""
        if path.exists():
            stored = json.loads(path.read_text())
            if stored["settings"] != settings:
                raise OtherRun(f"{path}: measured with {stored['settings']}, not {settings}; remove it to begin again")
            self.entries, self.peers = stored["entries"], stored["peers"]

    def has(self, number: int, peer: str) -> bool:
        """True where a server has been measured in a round, and did not fail."""
        return any(_of(each, number, peer) and "failed" not in each for each in self.entries)

    def add(self, entry: Figures) -> None:
        """Add what was measured of a server in a round, in place of an earlier failure."""
        self.entries = [each for each in self.entries if not _of(each, entry["round"], entry["peer"])] + [entry]
        self.save()

    def save(self) -> None:
        """Write the file."""
        draft = self._path.with_suffix(".draft")
        content = {"settings": self.settings, "peers": self.peers, "entries": self.entries}
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(self._path)

    def values(self, peer: str, model: str, protocol: str, *keys: str | int) -> list[float]:
        """A figure of all rounds that have it, such as `alone`, `p50_ms`."""
        found = []
        for entry in self.entries:
            value: Any = entry.get("models", {}).get(model, {}).get(protocol) if entry["peer"] == peer else None
            for key in keys:
                value = None if value is None else value[key]
                if isinstance(value, dict) and value.get("client_limited"):
                    value = None  # a search that the client ended says nothing about the server
            if value is not None:
                found.append(float(value))
        return found


def _of(entry: Figures, number: int, peer: str) -> bool:
    return bool(entry["round"] == number and entry["peer"] == peer)
