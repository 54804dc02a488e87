"""Runs random simulations on fresh seeds and reports the seeds that fail: `make simulate`.

    python -m scripts.simulate [--machine scheduler|gateway] [--seeds 20 | --seconds 10 | --kept] [--seed FIRST]

The first seed is random unless it is given, and the others follow it. A seed is printed with the command
that repeats it. The exit status is 1 when a seed failed.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.test_scheduler_machine import SchedulerMachine

KEPT_SEEDS = Path(__file__).resolve().parents[1] / "tests/properties/kept_seeds.txt"
DEFAULT_SEEDS = 20
_SEED_BYTES = 4
_LAST_FRAMES = -4
"""The end of a traceback, which is in the machine and in the code under test."""


def run_scheduler(number: int) -> None:
    """Run the property machine of the scheduler: 60 examples of up to 60 steps."""
    machine = seed(number)(type("SeededMachine", (SchedulerMachine,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            database=None,
            phases=[Phase.generate],
            max_examples=60,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_gateway(number: int) -> None:
    """Run a whole gateway on a simulated machine."""
    # Not at the top: Hypothesis draws from the constants of all modules that are imported.
    from tests.support.gateway.simulation.whole_gateway import simulate

    run = simulate(number)
    assert not run.problems, "\n  ".join(("what went wrong:", *run.problems, f"faults: {', '.join(run.faults)}"))


MACHINES: Mapping[str, Callable[[int], None]] = {"scheduler": run_scheduler, "gateway": run_gateway}
"""By name: runs one seed, and raises when an invariant does not hold."""


def kept_seeds(machine: str) -> list[int]:
    """The seeds of a machine that are always tried: they have failed once."""
    lines = (line.partition("#")[0].split() for line in KEPT_SEEDS.read_text(encoding="utf-8").splitlines())
    return [int(fields[1]) for fields in lines if fields and fields[0] == machine]


def try_seeds(machine: str, numbers: Iterable[int]) -> tuple[int, int]:
    """Run seeds and print each failure; returns how many were run and how many failed."""
    ran = failed = 0
    for number in numbers:
        ran += 1
        try:
            MACHINES[machine](number)
        except Exception as error:
            failed += 1
            print("".join(traceback.format_exception(error, limit=_LAST_FRAMES, chain=False)))
            print(f"{machine}: seed {number} failed")
            print(f"  to repeat it: make simulate MACHINE={machine} SEED={number}")
            print(f"  to keep it: add '{machine} {number}' to {KEPT_SEEDS.name}", flush=True)
    return ran, failed


def until(end_s: float, numbers: Iterable[int]) -> Iterator[int]:
    """Yield numbers until a time of the monotonic clock, and at least one."""
    for number in numbers:
        yield number
        if time.monotonic() >= end_s:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Try seeds of one machine, or of each."""
    parser = argparse.ArgumentParser(prog="python -m scripts.simulate", description="Run simulations on fresh seeds.")
    parser.add_argument("--machine", choices=MACHINES, help="default: each of them")
    parser.add_argument("--seed", type=int, help="the first seed; drawn if it is not given")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--seeds", type=int, help=f"how many (default: {DEFAULT_SEEDS}, and 1 with --seed)")
    number.add_argument("--seconds", type=float, help="as many as can be tried in this time, for each machine")
    number.add_argument("--kept", action="store_true", help=f"the seeds in {KEPT_SEEDS.name}")
    options = parser.parse_args(arguments)
    first = int.from_bytes(os.urandom(_SEED_BYTES)) if options.seed is None else options.seed
    wanted = options.seeds or (DEFAULT_SEEDS if options.seed is None else 1)
    any_failed = False
    for machine in [options.machine] if options.machine else MACHINES:
        started_s = time.monotonic()
        if options.kept:
            which, numbers = "kept seeds", iter(kept_seeds(machine))
        elif options.seconds is not None:
            which, numbers = f"seeds from {first}", until(started_s + options.seconds, count(first))
        else:
            which, numbers = f"seeds from {first}", islice(count(first), wanted)
        print(f"{machine}: {which}", flush=True)
        ran, failed = try_seeds(machine, numbers)
        any_failed |= failed > 0
        print(f"{machine}: {ran} {which}, {failed} failed, {time.monotonic() - started_s:.1f} s", flush=True)
    return 1 if any_failed else 0


if __name__ == "__main__":
    sys.exit(main())
