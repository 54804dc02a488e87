"""Journals of the scheduler machine under random events."""

import random

from sluice.batcher.drivers.journal import JournalWriter
from sluice.batcher.interface.events import AnyEvent
from tests.properties.test_scheduler_machine import SchedulerMachine
from tests.support.scheduling.builders import MS, S
from tests.support.scheduling.machine_world import KINDS, PIPELINES

ROUNDS = 9
STEPS = 60


class RecordedMachine(SchedulerMachine):
    """The scheduler machine with a journal of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[bytes] = []
        self._writer = JournalWriter(self.journal.append, self.scheduler.spec)

    def tell(self, event: AnyEvent) -> None:
        decisions = self.scheduler.handle(event, self.now_ns)
        self._writer.record(self.now_ns, event, decisions)
        self.carry_out(decisions)

    def wake_if_due(self) -> None:
        due_ns = self.scheduler.next_wakeup_ns()
        if due_ns is not None and due_ns <= self.now_ns:
            decisions = self.scheduler.handle_wakeup(self.now_ns)
            self._writer.record(self.now_ns, None, decisions)
            self.carry_out(decisions)


def recorded(seed: int) -> list[bytes]:
    """A journal in which all partitions are lost again and again while requests of all pipelines wait."""
    machine, source = RecordedMachine(), random.Random(seed)
    machine.come_up()
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            _take_step(machine, source)
        for name in sorted(machine.up):
            machine.lose(name)
        machine.advance_to(machine.now_ns + source.choice((MS, 5 * S, 70 * S)))
        for name in source.sample(sorted(KINDS), source.randint(1, len(KINDS))):
            machine.restore(name)
    machine.drain()
    return machine.journal


def _take_step(machine: SchedulerMachine, source: random.Random) -> None:
    busy, waiting = machine.busy(), machine.answerable()
    match source.randrange(9):
        case 0 if busy:
            machine.complete(source.choice(busy), [source.random() for _ in range(4)])
        case 1 if waiting:
            machine.answer_order(source.choice(waiting), fails=source.random() < 0.2)
        case 2:
            machine.advance_to(machine.now_ns + source.randrange(3 * MS))
        case 3:
            machine.fall_behind(source.randrange(3 * MS), source.choice((0, 1, 5)))
        case _:
            machine.arrive(
                pipeline=source.choice(PIPELINES).name,
                rows=source.randint(1, 4),
                slo_ns=source.choice((5 * MS, 20 * MS, 60 * S)),
                key=source.choice(("x=8", "x=16", "x=24")),
                memory_bytes=0,
                times=source.randint(1, 3),
                priority=source.randint(0, 2),
                timeout_ns=0,
                max_cost=None,
            )
