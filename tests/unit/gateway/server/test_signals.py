"""Signals stop a server, or ask something of it; the handlers are called as the interpreter would."""

import _thread
import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from sluice.gateway.server.signals import ServerSignals, SignalActions
from sluice.models.processes import SERVICE_SIGNALS, STOP_SIGNALS, UNUSED_SIGNALS


@pytest.fixture
def signals() -> Iterator[ServerSignals]:
    with ServerSignals() as opened:
        yield opened


def actions(calls: list[str]) -> SignalActions:
    return SignalActions(
        lambda: calls.append("stop"),
        lambda: calls.append("force"),
        lambda: calls.append("reload"),
        lambda: calls.append("reopen"),
        calls.append,
    )


def called(signals: ServerSignals, *numbers: int) -> list[str]:
    """The actions that signals cause while a server runs."""
    calls: list[str] = []

    async def run() -> None:
        signals.attach(asyncio.get_running_loop(), actions(calls))
        for number in numbers:
            signal.raise_signal(number)
        await asyncio.sleep(0)
        signals.detach()

    asyncio.run(run())
    return calls


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_stop_ends_a_process_that_has_done_nothing_yet(
    signals: ServerSignals, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(status: int) -> None:
        raise KeyboardInterrupt(status)

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(number)
    assert caught.value.args == (0,)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_stop_ends_a_program_that_still_starts(signals: ServerSignals, number: int) -> None:
    signals.unwind()
    with pytest.raises(SystemExit) as caught:
        signal.raise_signal(number)
    assert caught.value.code == 0


def test_the_second_one_ends_its_process_at_once(signals: ServerSignals, monkeypatch: pytest.MonkeyPatch) -> None:
    signals.unwind()
    ends: list[int] = []

    def end(status: int) -> None:
        ends.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    for status in (0, 1):
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == status
    assert ends == [1]


def test_a_signal_that_code_has_swallowed_stops_the_server_when_it_runs(signals: ServerSignals) -> None:
    signals.unwind()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert called(signals) == ["stop"]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_running_server_stops_then_is_forced_to(
    signals: ServerSignals, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: None)
    assert called(signals, number, signal.SIGTERM, signal.SIGTERM) == ["stop", "force"]


def test_other_signals_ask_for_something_or_are_ignored(signals: ServerSignals) -> None:
    assert called(signals, signal.SIGHUP, signal.SIGUSR1) == ["reload", "reopen"]
    assert called(signals, signal.SIGUSR2, signal.SIGRTMIN + 3) == ["SIGUSR2", "SIGRTMIN+3"]
    for number in UNUSED_SIGNALS:
        signal.raise_signal(number)


def test_a_hang_up_of_the_terminal_that_is_closed_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = False
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2 and not gone)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # the tests may be started by nohup
    with ServerSignals() as signals:
        assert called(signals, signal.SIGHUP) == ["reload"]
        gone = True
        assert called(signals, signal.SIGHUP) == ["stop"]


def test_the_handlers_of_before_return() -> None:
    numbers = SERVICE_SIGNALS
    before = [signal.getsignal(number) for number in numbers]
    with ServerSignals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in numbers] == before
