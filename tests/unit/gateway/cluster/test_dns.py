"""Workers behind a name in DNS: the answers of look-ups, and what becomes of the slots."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from sluice.gateway.cluster import dns
from sluice.gateway.cluster.dns import DnsSource, look_up
from sluice.gateway.cluster.sources import worker_sources
from sluice.gateway.config.remote_settings import DnsSettings, RemoteClass

Placements = list[tuple[str, str | None, str]]
Answer = Sequence[str] | OSError


def answers(monkeypatch: pytest.MonkeyPatch, *hosts: str, error: int | None = None) -> None:
    def getaddrinfo(name: str, port: int, **_: object) -> list[object]:
        if error is not None:
            raise socket.gaierror(error, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_addresses_are_in_numerical_order_each_once_with_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "10.0.0.10", "10.0.0.9", "fd00::1", "10.0.0.10")
    assert look_up("workers", 9001) == ["10.0.0.9:9001", "10.0.0.10:9001", "[fd00::1]:9001"]


def test_a_name_without_addresses_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, error=socket.EAI_NONAME)
    assert look_up("workers", 9001) == []


def test_a_missing_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, error=socket.EAI_AGAIN)
    with pytest.raises(OSError, match="no answer"):
        look_up("workers", 9001)


def placements(monkeypatch: pytest.MonkeyPatch, given: Sequence[Answer], slots: int = 2) -> Placements:
    """All that a source places when its look-ups have these answers, one after the other."""
    monkeypatch.setattr(dns, "INTERVAL_S", 0)
    placed: Placements = []

    async def main() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def answer(host: str, port: int) -> Sequence[str]:
            assert (host, port) == ("workers.test", 9001)
            each = next(left, None)
            if each is None:
                loop.call_soon_threadsafe(over.set)
                return last
            if isinstance(each, OSError):
                raise each
            return each

        left: Iterator[Answer] = iter(given)
        last = next(each for each in reversed(given) if not isinstance(each, OSError))
        source = DnsSource("edge", [f"edge-{index}" for index in range(slots)], "workers.test", 9001, answer)
        source.start(lambda *each: placed.append(each))
        await over.wait()
        await source.close()

    asyncio.run(main())
    return placed


def test_a_pod_that_moves_is_another_address_on_the_same_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = placements(monkeypatch, [["a:1", "b:1"], ["b:1", "c:1"]])
    assert placed == [
        ("edge-0", "a:1", ""),
        ("edge-1", "b:1", ""),
        ("edge-0", None, "a:1 is no longer listed"),
        ("edge-0", "c:1", ""),
    ]


def test_the_known_workers_stay_while_no_server_of_dns_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failure = OSError("temporary failure in name resolution")
    placed = placements(monkeypatch, [["a:1"], failure, failure, ["a:1"]])
    assert placed == [("edge-0", "a:1", "")]
    assert [each.message for each in caplog.records] == [
        "workers looked up",
        "workers cannot be looked up; the known ones stay",
        "workers can be looked up again",
    ]


def test_a_look_up_that_hangs_does_not_hold_up_the_loop_or_the_end() -> None:
    hanging, over = threading.Event(), threading.Event()

    def hang(host: str, port: int) -> Sequence[str]:
        hanging.set()
        over.wait(60)
        return []

    async def main() -> None:
        source = DnsSource("edge", ["edge-0"], "workers.test", 9001, hang)
        source.start(lambda *_: None)
        await asyncio.to_thread(hanging.wait, 10)
        await source.close()

    try:
        asyncio.run(main())
    finally:
        over.set()


def test_the_configuration_names_the_host_and_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    source = worker_sources([RemoteClass("edge", "cpu1", dns=DnsSettings("workers.test", 9001, 4))], "g", "1", "")[
        "edge"
    ]
    assert isinstance(source, DnsSource)
