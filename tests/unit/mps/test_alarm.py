import asyncio
import time

from sluice.models.units import NS_PER_MS
from sluice.mps.alarm import Alarm


def test_the_alarm_goes_off_at_its_time_and_never_early() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        rang: asyncio.Future[int] = loop.create_future()
        alarm = Alarm()
        alarm.start(lambda: rang.set_result(time.monotonic_ns()))
        due_ns = time.monotonic_ns() + 3 * NS_PER_MS
        alarm.arm(due_ns + 10_000 * NS_PER_MS)
        alarm.arm(due_ns)
        lateness_ns = await asyncio.wait_for(rang, 60) - due_ns
        alarm.close()
        alarm.close()
        return lateness_ns

    assert asyncio.run(main()) >= 0


def test_an_alarm_in_the_past_goes_off_at_once_and_one_that_was_turned_off_does_not() -> None:
    async def main() -> list[str]:
        rang: list[str] = []
        done = asyncio.Event()
        off, past = Alarm(), Alarm()
        off.start(lambda: rang.append("off"))
        past.start(lambda: (rang.append("past"), done.set()))  # type: ignore[arg-type, func-returns-value]
        off.arm(1)
        off.arm(None)
        past.arm(1)
        await asyncio.wait_for(done.wait(), 60)
        off.close()
        past.close()
        return rang

    assert asyncio.run(main()) == ["past"]
