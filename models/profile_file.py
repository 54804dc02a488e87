"""Profiles as they lie beside models: what was measured, on which hardware, of which file (see docs/profiles.md)."""

import enum
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from models.errors import ConfigError
from models.fingerprint import SIMULATED
from models.profile import LatencyTable
from models.units import NS_PER_S

FORMAT = 1
PERCENTILES = (50, 90, 99)

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Latency = Annotated[int, msgspec.Meta(ge=1, le=365 * 86_400 * NS_PER_S)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)
_VERSION = re.compile(r"[1-9][0-9]*")


class ProfileMissing(ConfigError):
    """There is no profile, or none for that kind of partition."""


class ProfileStale(ConfigError):
    """There is a profile, but of other hardware or of another model file."""


class Source(enum.StrEnum):
    """Where figures come from."""

    MEASURED = "measured"
    SIMULATED = "simulated"


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Percentiles of the latency of one batch size over `samples` runs (0: simulated)."""

    batch: _Positive
    p50_ns: _Latency
    p90_ns: _Latency
    p99_ns: _Latency
    samples: _Count

    def __post_init__(self) -> None:
        if not self.p50_ns <= self.p90_ns <= self.p99_ns:
            raise ValueError("expected p50_ns <= p90_ns <= p99_ns")


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one process found out about a model; None is what was not measured.

    A batch of b rows takes `memory_rest_bytes + b * memory_row_bytes` beyond what a process takes without the model.
    `warm_up_ns` is how much longer than usual the first run after a load takes.
    """

    cells: tuple[Cell, ...]
    memory_rest_bytes: _Count | None = None
    memory_row_bytes: _Count | None = None
    load_ns: _Count | None = None
    warm_up_ns: _Count | None = None

    def __post_init__(self) -> None:
        sizes = [cell.batch for cell in self.cells]
        if not sizes or sizes != sorted(set(sizes)):
            raise ValueError(f"expected cells with ascending batch sizes, got {sizes}")

    def table(self, percentile: int) -> LatencyTable:
        """The latencies at a percentile, which is one of `PERCENTILES`."""
        if percentile not in PERCENTILES:
            raise ConfigError(f"percentile {percentile}: profiles have {', '.join(map(str, PERCENTILES))}")
        return LatencyTable(tuple((cell.batch, getattr(cell, f"p{percentile}_ns")) for cell in self.cells))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is odd but usable: larger batches whose median is lower. Such cells stay as they are."""
        return tuple(
            f"batch {larger.batch} is quicker than batch {smaller.batch} at the median "
            f"({larger.p50_ns} against {smaller.p50_ns} ns)"
            for smaller, larger in pairwise(self.cells)
            if larger.p50_ns < smaller.p50_ns
        )


class Entry(Measurement, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measurement of the model file `sha256` on partitions of one `kind` of the hardware `fingerprint`."""

    fingerprint: str
    kind: str
    source: Source
    sha256: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is Source.SIMULATED) != (self.fingerprint == SIMULATED):
            raise ValueError(f"expected fingerprint {SIMULATED!r} for simulated figures, and only for them")

    @property
    def label(self) -> str:
        """The kind, marked where the figures are simulated."""
        return f"{self.kind} SIMULATED" if self.source is Source.SIMULATED else self.kind


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All entries of one model, at most one a fingerprint and kind."""

    format: int = FORMAT
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        keys = [(entry.fingerprint, entry.kind) for entry in self.entries]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"two entries for {twice[0][1]} of {twice[0][0]}")

    def merged(self, entries: Iterable[Entry]) -> "Profile":
        """This profile with `entries` in place of those of the same fingerprint and kind."""
        known = {(entry.fingerprint, entry.kind): entry for entry in self.entries}
        known |= {(entry.fingerprint, entry.kind): entry for entry in entries}
        return Profile(entries=tuple(known[key] for key in sorted(known)))

    def of_kind(self, kind: str) -> "Profile":
        """The entries of a kind of partition, at least one; raises ProfileMissing."""
        found = tuple(entry for entry in self.entries if entry.kind == kind)
        if not found:
            kinds = ", ".join(sorted({entry.kind for entry in self.entries}))
            raise ProfileMissing(f"there is no profile for partitions of kind {kind}; there are {kinds or 'none'}")
        return Profile(entries=found)

    def entry(self, kind: str) -> Entry:
        """The entry of a kind, rather a measured than a simulated one; raises as `of_kind`."""
        return min(self.of_kind(kind).entries, key=lambda entry: entry.source is Source.SIMULATED)

    def table(self, kind: str, percentile: int) -> LatencyTable:
        """The latency table of a kind at 50, 90 or 99 %; raises as `entry`. To be asked of a `usable` profile."""
        return self.entry(kind).table(percentile)

    def usable(self, fingerprint: str, sha256: str) -> "Profile":
        """The entries for this model file of this hardware, or simulated; raises ProfileStale if none is left."""
        here = [entry for entry in self.entries if entry.fingerprint in (fingerprint, SIMULATED)]
        usable = tuple(entry for entry in here if entry.sha256 == sha256)
        if not usable:
            others = sorted({entry.fingerprint for entry in self.entries})
            raise ProfileStale(
                "it was measured with another model file"
                if here
                else f"it was measured on other hardware ({'; '.join(others) or 'none'}), this is {fingerprint}"
            )
        return Profile(entries=usable)


def profile_path(model: Path, name: str) -> Path:
    """Where a model's profile lies: `profile.json` in a repository's version directory, else `NAME.profile.json`."""
    in_repository = _VERSION.fullmatch(model.parent.name) and model.name.startswith("model.")
    return model.with_name("profile.json" if in_repository else f"{name}.profile.json")


def model_hash(model: Path) -> str:
    """The SHA-256 of a model file, in hexadecimal."""
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Versioned(msgspec.Struct):
    format: int


# Made once: two threads that make the first decoder of a type crash (msgspec).
_decode_version = msgspec.json.Decoder(_Versioned).decode
_decode_profile = msgspec.json.Decoder(Profile).decode


def read_profile(path: Path) -> Profile:
    """Read a profile; raises ProfileMissing where there is none, ConfigError (`path: where: what`) if it is wrong."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ProfileMissing(f"{path}: there is no profile; `sluice profile` makes one") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        form = _decode_version(data).format
        if form != FORMAT:
            raise ConfigError(f"{path}: format: expected {FORMAT}, got {form}")
        return _decode_profile(data)
    except msgspec.DecodeError as error:
        match = _PLACE.fullmatch(str(error))
        raise ConfigError(f"{path}: {match['where']}: {match['what']}" if match else f"{path}: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON that can be read: {error}") from error


def write_profile(path: Path, profile: Profile) -> None:
    """Replace the file at once, so that a reader sees the old profile or the new one; raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
