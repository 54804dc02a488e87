"""One of the processes of `--procs`: it drives every n-th query of a run.

It is started as a module, with its `Task` on stdin. It says on stdout when it is ready, takes the start from stdin,
writes what it has driven to the task's file, and says so. In between it writes an empty line a second: while it lives,
its parent hears of it, and it ends when nobody reads the lines any more.
"""

import asyncio
import os
import pickle
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import uvloop

from sluice.loadgen.run.live import drive, open_live, read_metadata
from sluice.loadgen.run.plan import Plan, make_plan
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import TargetUnreachable
from sluice.models.errors import ConfigError, ServingError

READY, DONE, UNREACHABLE, REFUSED = b"ready", b"done", b"unreachable ", b"refused "
"""The lines of a process; the last two are followed by the message of an error."""

BEAT_S = 1.0


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
    beating = loop.create_task(_beat())

    async def start() -> int:
        _say(READY)
        return int(await commands.readline())

    target = open_live(task.own)
    whole = make_plan(task.whole, await read_metadata(task.own, target))
    if whole.schedule.digest != task.digest:
        raise ConfigError("--procs: the processes made different schedules; did a file or the model change just now?")
    driven = await drive(task.own, target, _part(whole, task.index, task.count), start)
    with task.file.open("wb") as file:
        pickle.dump(replace(driven, record=replace(driven.record, answers=[])), file, pickle.HIGHEST_PROTOCOL)
    beating.cancel()


def _part(plan: Plan, index: int, count: int) -> Plan:
    schedule = plan.schedule.part(index, count)
    requests = {key: plan.requests[key] for key in np.unique(schedule.sample).tolist()}
    return replace(plan, schedule=schedule, pacing=plan.pacing.part(index, count), requests=requests)


async def _beat() -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        _say(b"")


def _say(line: bytes) -> None:
    try:
        os.write(sys.stdout.fileno(), line + b"\n")
    except BrokenPipeError:
        os._exit(1)


def _main() -> None:
    # An interrupt is for the parent, which passes it on; it means something from the start of the queries on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = pickle.load(sys.stdin.buffer)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(task))
    except TargetUnreachable as error:
        _say(UNREACHABLE + str(error).encode())
    except (ServingError, OSError) as error:
        _say(REFUSED + str(error).encode())
    else:
        _say(DONE)


if __name__ == "__main__":
    _main()
