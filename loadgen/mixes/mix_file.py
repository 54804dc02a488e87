"""The YAML file of a mix, `--mix FILE`."""

import math
from pathlib import Path

import msgspec

from sluice.loadgen.mixes.mix import Mix, MixStream, with_zipf_shares
from sluice.loadgen.records.samples import RANDOM, SampleSource
from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.slo import MAX_START_AFTER_MS
from sluice.models.yaml_file import load_yaml


class SampleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The samples of a stream: as `--samples`, `--input`, `--labels` and `--subset`.

    `file` is relative to the file of the mix.
    """

    file: str
    inputs: dict[str, str] = msgspec.field(default_factory=dict)
    labels: str = ""
    subset: str = ""


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stream; either `model` or `pipeline` names what serves it, and `name` is that name unless given."""

    model: str = ""
    pipeline: str = ""
    name: str = ""
    share: float | None = None
    slo_ms: float | None = None
    samples: SampleSettings | None = None
    rows: int = 1
    priority: int = 0
    min_accuracy: float = 0.0
    max_cost: float | None = None
    start_after_ms: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.pipeline):
            raise ValueError("expected either model or pipeline")
        if self.share is not None and not 0 < self.share < math.inf:
            raise ValueError(f"share: expected a number above 0, got {self.share:g}")
        if self.slo_ms is not None and not 0 < self.slo_ms < math.inf:
            raise ValueError(f"slo_ms: expected a positive number, got {self.slo_ms:g}")
        if self.rows < 1:
            raise ValueError(f"rows: expected at least 1, got {self.rows}")
        if not 0 <= self.priority < 1 << 31:
            raise ValueError(f"priority: expected a whole number of at least 0, got {self.priority}")
        if not 0 <= self.min_accuracy <= 1:
            raise ValueError(f"min_accuracy: expected a number from 0 to 1, got {self.min_accuracy:g}")
        if self.max_cost is not None and not 0 <= self.max_cost < math.inf:
            raise ValueError(f"max_cost: expected a finite number of at least 0, got {self.max_cost:g}")
        if not 0 <= self.start_after_ms <= MAX_START_AFTER_MS:
            expected = f"a number of milliseconds from 0 to {MAX_START_AFTER_MS:g}"
            raise ValueError(f"start_after_ms: expected {expected}, got {self.start_after_ms:g}")

    def stream(self, folder: Path) -> MixStream:
        """The stream; the file of its samples is in `folder`."""
        served = self.model or self.pipeline
        source = SampleSource()
        if (samples := self.samples) is not None:
            file = samples.file if samples.file == RANDOM else str(folder / samples.file)
            source = SampleSource(file, samples.inputs, samples.labels, samples.subset)
        return MixStream(
            name=self.name or served,
            model=served,
            share=1.0 if self.share is None else self.share,
            slo_ms=self.slo_ms,
            samples=source,
            rows=self.rows,
            priority=self.priority,
            min_accuracy=self.min_accuracy,
            max_cost=self.max_cost,
            start_after_ms=self.start_after_ms,
        )


class MixSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file: the streams, and in place of their shares the exponent of Zipf's law, by rank."""

    streams: tuple[StreamSettings, ...]
    zipf: float | None = None


def read_mix(path: str) -> Mix:
    """Read a mix; raises `ConfigError` with the file, the line and what was expected."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--mix: {path}: cannot be read: {problem}") from error
    value, lines = load_yaml(text, path)
    file = convert({} if value is None else value, MixSettings, path, lines=lines)
    streams = tuple(settings.stream(Path(path).parent) for settings in file.streams)
    if file.zipf is not None:
        if not 0 <= file.zipf < math.inf:
            raise lines.error(path, "zipf", f"expected an exponent of at least 0, got {file.zipf:g}")
        given = next((number for number, each in enumerate(file.streams) if each.share is not None), None)
        if given is not None:
            raise lines.error(path, f"streams[{given}].share", "expected no share beside zipf")
        streams = with_zipf_shares(streams, file.zipf)
    return Mix(streams, path)
