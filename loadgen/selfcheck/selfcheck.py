"""The search for the highest rate that the client keeps on this machine."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import uvloop

from sluice.loadgen.selfcheck.clock import Clock, measure_clock
from sluice.loadgen.selfcheck.probe import Ceiling, ClientProbe, closed_loop, probe
from sluice.loadgen.selfcheck.server import null_server

SAFE_SHARE = 0.8
"""Share of the highest rate kept that is called safe: the answers of real servers are larger than the null server's."""
LOWEST_RATE = 100.0
_PRECISION = 1.1


class CheckEffort(msgspec.Struct, frozen=True):
    """The time of a check: at most `total_s` in all, `probe_s` for each rate, `closed_loop_s` for each closed loop."""

    total_s: float
    probe_s: float
    closed_loop_s: float


THOROUGH = CheckEffort(25.0, 1.5, 1.0)
QUICK = CheckEffort(3.0, 0.4, 0.3)


class ClientSpeed(msgspec.Struct, frozen=True):
    """The client's speed over one protocol: `kept` is the highest rate that it kept, `failed` the lowest above it."""

    protocol: str
    closed_loop: Ceiling
    kept: ClientProbe | None
    failed: ClientProbe | None

    @property
    def safe_rate(self) -> float:
        """The rate up to which runs measure the target and not the client, to two digits; 0 where there is none."""
        if self.kept is None:
            return 0.0
        rate = self.kept.rate * SAFE_SHARE
        unit = 10.0 ** (math.floor(math.log10(rate)) - 1)
        return math.floor(rate / unit) * unit


class SelfCheck(msgspec.Struct, frozen=True):
    """The figures of this machine's client."""

    clock: Clock
    cores: int
    speeds: tuple[ClientSpeed, ...]

    @property
    def is_fit(self) -> bool:
        """True if there is a safe rate over every protocol that was tried."""
        return all(speed.kept is not None for speed in self.speeds)


def selfcheck(
    protocols: Sequence[str], effort: CheckEffort, cores: int, report: Callable[[str], object] = lambda line: None
) -> SelfCheck:
    """Check the client over each protocol; `report` gets a line about each step. Raises `ConfigError`."""
    ends_s = time.monotonic() + effort.total_s
    speeds = []
    for done, protocol in enumerate(protocols):
        now_s = time.monotonic()
        until_s = now_s + (ends_s - now_s) / (len(protocols) - done)
        with null_server(protocol) as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            speeds.append(runner.run(_speed(protocol, url, effort, until_s, report)))
    return SelfCheck(measure_clock(), cores, tuple(speeds))


async def highest_kept(
    ceiling_per_s: float,
    try_rate: Callable[[float, int], Awaitable[ClientProbe]],
    may_go_on: Callable[[], bool],
) -> tuple[ClientProbe | None, ClientProbe | None]:
    """Halve from half of the ceiling until a rate is kept, then bisect on the logarithm.

    Returns the highest rate that was kept, and the lowest above it that was not. `try_rate` takes a rate and the number
    of the probe. After the first probe, `may_go_on` says whether there is time for another one.
    """
    kept: ClientProbe | None = None
    failed: ClientProbe | None = None
    rate, number = max(ceiling_per_s / 2, LOWEST_RATE), 0
    while number == 0 or may_go_on():
        tried = await try_rate(rate, number)
        number += 1
        if tried.reasons:
            failed = tried
        else:
            kept = tried
        if kept is None:
            if rate <= LOWEST_RATE:
                break
            rate = max(rate / 2, LOWEST_RATE)
        else:
            high = ceiling_per_s if failed is None else failed.rate
            if high / kept.rate <= _PRECISION:
                break
            rate = math.sqrt(kept.rate * high)
    return kept, failed


async def _speed(
    protocol: str, url: str, effort: CheckEffort, until_s: float, report: Callable[[str], object]
) -> ClientSpeed:
    ceiling = await closed_loop(url, effort.closed_loop_s)
    report(f"{protocol}: {ceiling.per_s:.0f}/s in a closed loop")

    async def try_rate(rate: float, number: int) -> ClientProbe:
        tried = await probe(url, rate, effort.probe_s, seed=number)
        report(f"{protocol}: {rate:.0f}/s {'; '.join(tried.reasons) or 'kept'}")
        return tried

    found = await highest_kept(ceiling.per_s, try_rate, lambda: time.monotonic() + effort.probe_s < until_s)
    return ClientSpeed(protocol, ceiling, *found)
