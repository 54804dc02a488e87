"""Regions of shared memory that clients register, and tensors in them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sluice.gateway.protocol import shared_memory
from sluice.gateway.protocol.shared_memory import RegionStatus, SharedMemory, SharedMemoryRef
from sluice.models.errors import (
    AlreadyExists,
    BadTensor,
    ForbiddenRequest,
    NotFoundError,
    RequestError,
    UnsupportedRequest,
)
from sluice.models.tensors.arrays import WireBytes, encode_bytes

KEY = f"/test-regions-{os.getpid()}"


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path(f"/dev/shm{KEY}")
    path.write_bytes(bytes(range(64)))
    yield path
    with suppress(FileNotFoundError):
        path.unlink()


@pytest.fixture
def regions() -> SharedMemory:
    return SharedMemory(True, 48)


def test_regions_are_listed_until_they_are_unregistered(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 64)
    regions.register("b", KEY[1:], 16, 48)
    assert regions.status() == [RegionStatus("a", KEY, 0, 64), RegionStatus("b", KEY[1:], 16, 48)]
    assert regions.status("b") == [RegionStatus("b", KEY[1:], 16, 48)]
    regions.unregister("a")
    regions.unregister("a")
    assert [status.name for status in regions.status()] == ["b"]
    regions.unregister()
    assert regions.status() == []
    with pytest.raises(NotFoundError, match="Unable to find shared memory region: 'b'"):
        regions.status("b")


def test_a_window_reads_and_writes_its_part(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 8, 32)
    assert regions.window(SharedMemoryRef("a", 4, 2)).read() == bytes([10, 11, 12, 13])
    assert regions.window(SharedMemoryRef("a", 0, 32)).read() == b""
    values = np.array([[1, 2], [3, 4]], np.int16)
    assert regions.window(SharedMemoryRef("a", 8, 24)).write("y", values) == SharedMemoryRef("a", 8, 24)
    assert memory.read_bytes()[32:40] == values.tobytes()
    assert regions.window(SharedMemoryRef("a", 10, 0)).write("y", values.T) == SharedMemoryRef("a", 8, 0)
    assert memory.read_bytes()[8:16] == np.array([1, 3, 2, 4], np.int16).tobytes()
    buffer, offsets = encode_bytes(np.array([[b"skipped"], [b"x"]], np.object_))
    assert regions.window(SharedMemoryRef("a", 8, 0)).write(
        "y", WireBytes(buffer, (1, 1), offsets[1:])
    ) == SharedMemoryRef("a", 5, 0)
    assert memory.read_bytes()[8:13] == b"\1\0\0\0x"
    assert regions.window(SharedMemoryRef("a", 0, 0)).write("y", np.empty((1, 0), np.float32)) == SharedMemoryRef(
        "a", 0, 0
    )


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (SharedMemoryRef("b", 1), "Unable to find shared memory region: 'b'"),
        (SharedMemoryRef("a", 1, 33), "Invalid offset for shared memory region: 'a': expected 0 to 32, got 33"),
        (SharedMemoryRef("a", 1, -1), "Invalid offset for shared memory region"),
        (
            SharedMemoryRef("a", 33),
            "Invalid offset \\+ byte size for shared memory region: 'a' has 32 bytes, but 33 from 0",
        ),
        (SharedMemoryRef("a", -1), "Invalid offset \\+ byte size"),
        (SharedMemoryRef("a", 2**63 - 1, 31), "Invalid offset \\+ byte size"),
        (SharedMemoryRef("a", 2**70, 31), "Invalid offset \\+ byte size"),
    ],
)
def test_a_place_must_be_within_its_region(
    memory: Path, regions: SharedMemory, place: SharedMemoryRef, problem: str
) -> None:
    regions.register("a", KEY, 8, 32)
    with pytest.raises((BadTensor, NotFoundError), match=problem):
        regions.window(place)


def test_what_is_read_for_an_input_is_bounded(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 64)
    assert len(regions.input_window(SharedMemoryRef("a", 48)).read()) == 48
    with pytest.raises(
        BadTensor, match="an input of 49 bytes in shared memory region 'a' is over the limit of 48 bytes"
    ):
        regions.input_window(SharedMemoryRef("a", 49))


def test_an_output_that_is_too_large_is_not_written(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 64)
    with pytest.raises(BadTensor, match=r"output 'y' \(7 bytes\) should be at least 8 bytes to hold the results"):
        regions.window(SharedMemoryRef("a", 7)).write("y", np.zeros(2, np.float32))
    assert memory.read_bytes() == bytes(range(64))


@pytest.mark.parametrize(
    ("key", "offset", "byte_size", "problem"),
    [
        ("/not-there", 0, 1, "Unable to open shared memory region: '/not-there': No such file"),
        (KEY, 0, 65, "it has 64 bytes, but offset and byte_size take 65"),
        (KEY, 2**63, 2**63, "it has 64 bytes"),
        (KEY, -1, 8, "expected an offset of at least 0"),
        (KEY, 0, 0, "a byte_size of at least 1"),
        ("", 0, 1, "must be the name of an object"),
        ("/", 0, 1, "must be the name of an object"),
        ("..", 0, 1, "must be the name of an object"),
        ("/../../etc/passwd", 0, 1, "must be the name of an object"),
        ("a\0b", 0, 1, "must be the name of an object"),
        ("\ud800", 0, 1, "must be the name of an object"),
        ("x" * 256, 0, 1, "must be the name of an object"),
        ("/triton_python_backend_shm_region_1", 0, 1, "keys that begin with sluice or triton_ are reserved"),
        ("sluice", 0, 1, "are reserved"),
    ],
)
def test_a_region_that_cannot_be_opened_is_refused(
    memory: Path, regions: SharedMemory, key: str, offset: int, byte_size: int, problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        regions.register("a", key, offset, byte_size)
    assert regions.status() == []


def test_only_objects_of_shared_memory_are_opened(memory: Path, regions: SharedMemory) -> None:
    link, pipe = (memory.with_name(f"{memory.name}-{kind}") for kind in ("link", "pipe"))
    try:
        link.symlink_to("/etc/passwd")
        os.mkfifo(pipe)
        for path in (link, pipe):
            with pytest.raises(RequestError, match=r"Unable to open|it is not a shared memory object"):
                regions.register("a", path.name, 0, 1)
    finally:
        link.unlink()
        pipe.unlink()


def test_names_are_taken_once_and_there_must_be_one(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 8)
    with pytest.raises(AlreadyExists, match="shared memory region 'a' already in manager"):
        regions.register("a", KEY, 0, 8)
    with pytest.raises(RequestError, match="must have a name"):
        regions.register("", KEY, 0, 8)


def test_the_number_of_regions_is_bounded(memory: Path, regions: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "MAX_REGIONS", 2)
    for name in ("a", "b"):
        regions.register(name, KEY, 0, 8)
    with pytest.raises(RequestError, match="the limit of 2 shared memory regions is reached"):
        regions.register("c", KEY, 0, 8)


def test_a_region_stays_open_as_long_as_a_request_uses_it(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 64)
    before = len(os.listdir("/proc/self/fd"))
    window = regions.window(SharedMemoryRef("a", 4, 60))
    regions.unregister("a")
    memory.unlink()
    assert window.read() == bytes([60, 61, 62, 63])
    del window
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_an_object_that_was_cut_short_is_an_error_for_its_client_alone(memory: Path, regions: SharedMemory) -> None:
    regions.register("a", KEY, 0, 64)
    os.truncate(memory, 10)
    with pytest.raises(BadTensor, match="region 'a': its object has been truncated"):
        regions.window(SharedMemoryRef("a", 8, 8)).read()


def test_clients_have_no_regions_unless_they_may(memory: Path) -> None:
    regions = SharedMemory(False, 0)
    for attempt in (
        lambda: regions.register("a", KEY, 0, 8),
        regions.unregister,
        regions.status,
        lambda: regions.window(SharedMemoryRef("a", 8)),
    ):
        with pytest.raises(UnsupportedRequest, match="started without --allow-client-shm"):
            attempt()


def test_only_objects_with_the_prefix_are_registered(memory: Path) -> None:
    regions = SharedMemory(True, 48, "test-regions-")
    regions.register("a", KEY, 0, 64)
    regions.register("b", KEY[1:], 0, 64)
    for key in ("/other", "x" + KEY[1:], "//test-regions-1", ""):
        with pytest.raises(ForbiddenRequest, match="begins with the value of --client-shm-prefix, which is 'test-reg"):
            regions.register("c", key, 0, 64)
    with pytest.raises(ForbiddenRequest, match="without which a server on a network accepts none"):
        SharedMemory(True, 48, None).register("a", KEY, 0, 64)
