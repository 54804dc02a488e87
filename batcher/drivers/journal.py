"""The journal: every step of a scheduler, one JSON line each, enough to replay it to the identical decisions."""

from collections.abc import Callable, Iterable

import msgspec

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.policies.registry import decode_policy
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.errors import ConfigError, ServingError


class JournalStep(msgspec.Struct, frozen=True):
    """One call of the scheduler: an event, or (None) a wake-up, and the decisions that it returned."""

    now_ns: int
    event: AnyEvent | None
    decisions: tuple[AnyDecision, ...]


decode_spec = msgspec.json.Decoder(SchedulerSpec, dec_hook=decode_policy).decode
"""Reads the first line of a journal."""
decode_step = msgspec.json.Decoder(JournalStep, dec_hook=decode_policy).decode
"""Reads every other line of a journal."""


class JournalWriter:
    """Writes the spec and then every step as a line to `write`."""

    def __init__(self, write: Callable[[bytes], object], spec: SchedulerSpec) -> None:
        self._write = write
        self._encoder = msgspec.json.Encoder()
        write(self._encoder.encode(spec) + b"\n")

    def record(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        """Append one step."""
        self._write(self._encoder.encode(JournalStep(now_ns, event, tuple(decisions))) + b"\n")


class JournalDifference(msgspec.Struct, frozen=True):
    """A step of a journal for which the scheduler decided otherwise."""

    line: int
    step: JournalStep
    decisions: tuple[AnyDecision, ...]


def replay(lines: Iterable[bytes], planner: Planner | None = None) -> JournalDifference | None:
    """Run a scheduler over a journal; the first step whose decisions differ, None if nothing has changed.

    `planner` is what the scheduler that wrote it had.

    What follows a difference means nothing: later events answer decisions that were not taken. Raises ConfigError for a
    line that is not part of a journal, or that no scheduler of this version can have written after those before it.
    """
    scheduler: Scheduler | None = None
    now_ns = 0
    for number, line in enumerate(lines, start=1):
        spec = step = None
        try:
            if scheduler is None:
                spec = decode_spec(line)
            else:
                step = decode_step(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ServingError) as error:
            expected = "the scheduler's spec" if scheduler is None else "a step"
            raise ConfigError(f"journal line {number}: expected {expected} in JSON: {error}") from error
        if step is not None and step.now_ns < now_ns:
            raise ConfigError(f"journal line {number}: expected a time of at least {now_ns} ns, got {step.now_ns}")
        try:
            if spec is not None:
                scheduler = Scheduler(spec, planner)
                continue
            assert scheduler is not None
            assert step is not None
            now_ns = step.now_ns
            decisions = scheduler.handle_wakeup(now_ns) if step.event is None else scheduler.handle(step.event, now_ns)
        except Exception as error:
            # Steps that do not belong together break what the scheduler relies on, anywhere.
            what = "no scheduler can begin with" if step is None else "the lines before it do not lead to"
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"journal line {number}: {what} what it says ({reason:.200})") from error
        if tuple(decisions) != step.decisions:
            return JournalDifference(number, step, tuple(decisions))
    if scheduler is None:
        raise ConfigError("journal line 1: expected the scheduler's spec, the journal is empty")
    return None
