"""The journal: every step of a scheduler, one JSON line each, enough to replay it to the identical decisions."""

from collections.abc import Callable, Iterable

import msgspec

from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision
from sluice.batcher.interface.events import AnyEvent
from sluice.batcher.interface.planner_protocol import Planner
from sluice.batcher.policies.registry import decode_policy
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.errors import ConfigError


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
    line that is not part of a journal.
    """
    scheduler: Scheduler | None = None
    for number, line in enumerate(lines, start=1):
        try:
            if scheduler is None:
                scheduler = Scheduler(decode_spec(line), planner)
                continue
            step = decode_step(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            expected = "the scheduler's spec" if scheduler is None else "a step"
            raise ConfigError(f"journal line {number}: expected {expected} in JSON: {error}") from error
        if step.event is None:
            decisions = scheduler.handle_wakeup(step.now_ns)
        else:
            decisions = scheduler.handle(step.event, step.now_ns)
        if tuple(decisions) != step.decisions:
            return JournalDifference(number, step, tuple(decisions))
    if scheduler is None:
        raise ConfigError("journal line 1: expected the scheduler's spec, the journal is empty")
    return None
