"""One of the processes of `--procs`: it drives every n-th query of a run.

It is a child process with a `Task`: it says when it is ready, takes the start from its input, tells the numbers of its
queries that have left and ended once a second, writes what it has driven to the task's file, and says so. At the looks
of a test that may end the run early it reports its counts, and it ends the run when its input says that.
"""

import asyncio
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import uvloop

from sluice.loadgen.records.interim import LookCounts, PartialLooks
from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.run.child import REFUSED, UNREACHABLE, beat, say, take_task
from sluice.loadgen.run.live import drive, open_live, read_metadata
from sluice.loadgen.run.plan import RunPlan, interim_test, make_plan
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.errors import ConfigError, ServingError

READY, LOOK, DONE = b"ready", b"look ", b"done"
"""The words of the process to its parent; after a look come its time and the counts."""
OVER = b"over\n"
"""The word of the parent that ends the run."""


@dataclass(frozen=True)
class Task:
    """The part `index` of `count` of a run.

    `own` is the configuration of this process, whose connections are its share of those of the `whole`. `digest` is
    that of the whole schedule, and `file` takes the result.
    """

    whole: RunConfig
    own: RunConfig
    index: int
    count: int
    digest: str
    file: Path


async def _run(task: Task) -> None:
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    counts: Callable[[], QueryCounts] | None = None

    def progress() -> bytes:
        return b"" if counts is None else b"%d %d" % counts()

    def watch(of_the_run: Callable[[], QueryCounts]) -> None:
        nonlocal counts
        counts = of_the_run

    beating, hearing = loop.create_task(beat(progress)), None

    over = asyncio.Event()

    async def start() -> int:
        nonlocal hearing
        say(READY)
        start_ns = int(await commands.readline())
        hearing = loop.create_task(_hear(commands, over))
        return start_ns

    target = open_live(task.own)
    whole = make_plan(task.whole, await read_metadata(task.own, target))
    if whole.schedule.digest != task.digest:
        raise ConfigError("--procs: the processes made different schedules; did a file or the model change just now?")
    test = interim_test(task.whole, whole)
    looks = None if test is None else PartialLooks(test, _report)
    driven = await drive(task.own, target, _part(whole, task.index, task.count), start, looks, watch, over)
    with task.file.open("wb") as file:
        pickle.dump(replace(driven, record=replace(driven.record, answers=[])), file, pickle.HIGHEST_PROTOCOL)
    beating.cancel()
    if hearing is not None:
        hearing.cancel()


async def _hear(commands: asyncio.StreamReader, over: asyncio.Event) -> None:
    if await commands.readline() == OVER:
        over.set()


def _report(at_ns: int, counts: LookCounts) -> None:
    say(LOOK + b"%d %d %d %d %d" % (at_ns, *counts))


def _part(plan: RunPlan, index: int, count: int) -> RunPlan:
    schedule = plan.schedule.part(index, count)
    requests = {key: plan.requests[key] for key in np.unique(schedule.sample).tolist()}
    return replace(plan, schedule=schedule, pacing=plan.pacing.part(index, count), requests=requests)


def _main() -> None:
    task = cast(Task, take_task())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(task))
    except TargetUnreachable as error:
        say(UNREACHABLE + str(error).encode())
    except (ServingError, OSError) as error:
        say(REFUSED + str(error).encode())
    else:
        say(DONE)


if __name__ == "__main__":
    _main()
