"""Profiles as files beside models: measurements, hardware and model file (see docs/operate/profiles.md)."""

import enum
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.profiles.hardware import SIMULATED
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Measurement
from sluice.models.regular_file import is_there, read_regular

FORMAT = 1

_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)
_VERSION = re.compile(r"[1-9][0-9]*")


class ProfileMissing(ConfigError):
    """There is no profile, or none for that kind of partition."""


class ProfileStale(ConfigError):
    """The profile was measured on other hardware, or with another model file."""


class FigureSource(enum.StrEnum):
    """The source of figures."""

    MEASURED = "measured"
    SIMULATED = "simulated"


class ProfileEntry(Measurement, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measurement of the model file `sha256` on partitions of one `kind` of the hardware `fingerprint`.

    `unenforced` are the reasons why the measured partition was not enforced; none if it was.
    """

    fingerprint: str
    kind: str
    source: FigureSource
    sha256: str
    unenforced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is FigureSource.SIMULATED) != (self.fingerprint == SIMULATED):
            raise ValueError(f"expected fingerprint {SIMULATED!r} for simulated figures, and only for them")

    @property
    def label(self) -> str:
        """The kind, marked if the figures are simulated or the partition was not enforced."""
        if self.source is FigureSource.SIMULATED:
            return f"{self.kind} SIMULATED"
        return f"{self.kind} UNENFORCED" if self.unenforced else self.kind

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the measurement, and the reasons why the partition was not enforced."""
        reasons = tuple(f"the partition did not hold: {reason}" for reason in self.unenforced)
        return (*super().warnings, *reasons)


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All entries of one model, at most one for each fingerprint and kind."""

    format: int = FORMAT
    entries: tuple[ProfileEntry, ...]

    def __post_init__(self) -> None:
        keys = [(entry.fingerprint, entry.kind) for entry in self.entries]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"two entries for {twice[0][1]} of {twice[0][0]}")

    def merged(self, entries: Iterable[ProfileEntry]) -> "ModelProfile":
        """This profile with `entries` in place of those of the same fingerprint and kind."""
        known = {(entry.fingerprint, entry.kind): entry for entry in self.entries}
        known |= {(entry.fingerprint, entry.kind): entry for entry in entries}
        return ModelProfile(entries=tuple(known[key] for key in sorted(known)))

    def of_kind(self, kind: str) -> "ModelProfile":
        """The entries of a kind of partition, at least one; raises ProfileMissing."""
        found = tuple(entry for entry in self.entries if entry.kind == kind)
        if not found:
            kinds = ", ".join(sorted({entry.kind for entry in self.entries}))
            raise ProfileMissing(
                f"there is no profile for partitions of kind {kind}; the profile has {kinds or 'none'}"
            )
        return ModelProfile(entries=found)

    def entry(self, kind: str) -> ProfileEntry:
        """The entry of a kind, preferably a measured one; raises as `of_kind`."""
        return min(self.of_kind(kind).entries, key=lambda entry: entry.source is FigureSource.SIMULATED)

    def table(self, kind: str, percentile: int) -> LatencyTable:
        """The latency table of a kind at 50, 90 or 99 %; raises as `entry`. The profile must be a `usable` one."""
        return self.entry(kind).table(percentile)

    def usable(self, fingerprint: str, sha256: str) -> "ModelProfile":
        """The entries for this model file on this hardware, or simulated; raises ProfileStale if there are none."""
        here = [entry for entry in self.entries if entry.fingerprint in (fingerprint, SIMULATED)]
        usable = tuple(entry for entry in here if entry.sha256 == sha256)
        if not usable:
            others = sorted({entry.fingerprint for entry in self.entries})
            raise ProfileStale(
                "it was measured with another model file"
                if here
                else f"it was measured on other hardware ({'; '.join(others) or 'none'}), this is {fingerprint}"
            )
        return ModelProfile(entries=usable)


def profile_path(model: Path, name: str) -> Path:
    """The path of a model's profile: `profile.json` in a repository's version directory, else `NAME.profile.json`."""
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
_decode_profile = msgspec.json.Decoder(ModelProfile).decode


def read_profile(path: Path) -> ModelProfile:
    """Read a profile; raises ProfileMissing if there is none, ConfigError (`path: where: what`) if it is wrong."""
    try:
        if not is_there(path):
            raise ProfileMissing(f"{path}: there is no profile; `sluice profile` makes one")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    data = read_regular(path)
    try:
        form = _decode_version(data).format
        if form != FORMAT:
            raise ConfigError(f"{path}: format: expected {FORMAT}, got {form}")
        return _decode_profile(data)
    except msgspec.DecodeError as error:
        match = _PLACE.fullmatch(str(error))
        raise ConfigError(f"{path}: {match['where']}: {match['what']}" if match else f"{path}: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Replace the file atomically, so that a reader sees the old profile or the new one; raises OSError."""
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
