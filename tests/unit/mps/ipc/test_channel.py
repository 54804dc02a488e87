import os
import socket
import threading

import pytest

from sluice.models.errors import PartitionError
from sluice.mps.ipc.channel import PACKET_BYTES, Channel
from sluice.mps.ipc.messages import BatchRefused, BatchWithdrawn, FromWorker, RunBatch, ToWorker, WithdrawBatch
from tests.support.gateway.processes import memory_files

Pair = tuple[Channel[FromWorker], Channel[ToWorker]]


@pytest.fixture
def ends() -> Pair:
    gateway, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(gateway, FromWorker), Channel(worker, ToWorker)


def test_messages_arrive_whole_and_in_order(ends: Pair) -> None:
    gateway, worker = ends
    worker.send(BatchWithdrawn(1))
    worker.send(BatchRefused(2, "no"))
    assert list(gateway.receive()) == [(BatchWithdrawn(1), ()), (BatchRefused(2, "no"), ())]
    assert list(gateway.receive()) == []
    _close(ends)


def test_one_call_takes_a_bounded_number_of_messages(ends: Pair) -> None:
    gateway, worker = ends
    for batch in range(70):
        worker.send(BatchWithdrawn(batch))
    assert [len(list(gateway.receive())), len(list(gateway.receive()))] == [64, 6]
    _close(ends)


def test_a_descriptor_travels_with_its_message_and_is_not_inherited(ends: Pair) -> None:
    gateway, worker = ends
    fd = os.memfd_create("test-travels")
    os.write(fd, b"content")
    worker.send(BatchWithdrawn(1), [fd])
    worker.send(BatchWithdrawn(2))
    (first, fds), second = gateway.receive()
    assert (first, second) == (BatchWithdrawn(1), (BatchWithdrawn(2), ()))
    assert os.pread(fds[0], 16, 0) == b"content"
    assert not os.get_inheritable(fds[0])
    os.close(fd)
    os.close(fds[0])
    _close(ends)


def test_more_descriptors_than_a_message_may_carry_are_refused_and_closed(ends: Pair) -> None:
    gateway, worker = ends
    fd = os.memfd_create("test-too-many")
    worker.send(BatchWithdrawn(1), [fd] * 8)
    with pytest.raises(PartitionError, match="cut short"):
        next(gateway.receive())
    assert len(memory_files(os.getpid(), "test-too-many")) == 1
    os.close(fd)
    _close(ends)


def test_the_end_is_seen_after_all_that_was_sent(ends: Pair) -> None:
    gateway, worker = ends
    worker.send(BatchWithdrawn(1))
    worker.close()
    assert list(gateway.receive()) == [(BatchWithdrawn(1), ())]
    with pytest.raises(EOFError):
        next(gateway.receive())
    with pytest.raises(ConnectionError):
        gateway.send(WithdrawBatch(1))
    gateway.close()


def test_an_end_closed_with_unread_messages_is_an_end_as_well(ends: Pair) -> None:
    gateway, worker = ends
    gateway.send(WithdrawBatch(1))
    worker.close()
    with pytest.raises(EOFError):
        next(gateway.receive())
    gateway.close()


def test_a_full_socket_is_reported_and_can_be_used_when_it_was_read(ends: Pair) -> None:
    gateway, worker = ends
    (packet,) = gateway.packets(RunBatch(1, "m" * 50_000, ()))
    sent = 0
    while gateway.try_send(packet):
        sent += 1
    assert sent > 0
    assert sum(len(list(worker.receive())) for _ in range(1 + sent // 64)) == sent
    assert gateway.try_send(packet)
    _close(ends)


def test_a_full_socket_is_reported_as_well_when_a_descriptor_goes_along(ends: Pair) -> None:
    gateway, worker = ends
    (packet,) = gateway.packets(RunBatch(1, "m" * 50_000, ()))
    while gateway.try_send(packet):
        pass
    assert not gateway.try_send(packet, [0])
    list(worker.receive())
    assert gateway.try_send(packet, [0])
    _close(ends)


def test_what_cannot_be_read_comes_after_what_was_read_before_it(ends: Pair) -> None:
    gateway, worker = ends
    worker.send(BatchWithdrawn(1))
    worker.send(WithdrawBatch(2))
    worker.send(BatchWithdrawn(3))
    messages = gateway.receive()
    assert next(messages) == (BatchWithdrawn(1), ())
    with pytest.raises(PartitionError, match=r"a packet is no message: Invalid value 'WithdrawBatch'"):
        next(messages)
    assert list(gateway.receive()) == [(BatchWithdrawn(3), ())]
    _close(ends)


@pytest.mark.parametrize(
    "packet",
    [
        b"?",
        b"\x93\xa1",
        b"\x92\xac" + b"BatchRefused",
        b"\x92\xaeBatchWithdrawn\xa1x",
        b"\x93\xacBatchRefused\x01\xa2\xff\xfe",  # text that is not UTF-8
    ],
)
def test_bytes_that_are_no_message_are_refused_and_their_descriptors_closed(packet: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gateway: Channel[FromWorker] = Channel(ours, FromWorker)
    fd = os.memfd_create("test-no-message")
    socket.send_fds(theirs, [packet], [fd])
    with pytest.raises(PartitionError, match="channel: a packet is no message: "):
        next(gateway.receive())
    assert len(memory_files(os.getpid(), "test-no-message")) == 1
    os.close(fd)
    theirs.close()
    gateway.close()


def test_a_message_that_is_longer_than_a_packet_arrives_whole_with_its_descriptor(ends: Pair) -> None:
    gateway, worker = ends
    fd = os.memfd_create("test-parts")
    long = RunBatch(1, "m" * (2 * PACKET_BYTES), ())
    sender = threading.Thread(target=gateway.send, args=(long, [fd]))
    sender.start()
    ((message, (received,)),) = worker.receive(wait=True)
    sender.join()
    assert message == long
    os.close(received)
    os.close(fd)
    gateway.send(WithdrawBatch(2))
    assert list(worker.receive()) == [(WithdrawBatch(2), ())]
    _close(ends)


def test_the_parts_of_a_message_are_awaited(ends: Pair) -> None:
    gateway, worker = ends
    long = RunBatch(1, "m" * PACKET_BYTES, ())
    first, *others = gateway.packets(long)
    assert gateway.try_send(first)
    assert list(worker.receive()) == []
    assert [list(worker.receive()) for packet in others if gateway.try_send(packet)][-1] == [(long, ())]
    _close(ends)


def test_the_longest_message_fits(ends: Pair) -> None:
    gateway, _ = ends
    limit = 16 * 1024 * 1024
    assert len(gateway.packets(RunBatch(1, "m" * (limit - 22), ()))) >= 17
    with pytest.raises(PartitionError, match=f"a message of {limit + 1} bytes is over the limit of {limit}"):
        gateway.packets(RunBatch(1, "m" * (limit - 19), ()))
    _close(ends)


@pytest.mark.parametrize("packet", [b"\xc1", b"\xc1\x01m"])
def test_a_part_that_cannot_be_one_is_refused_and_its_descriptor_closed(packet: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gateway: Channel[FromWorker] = Channel(ours, FromWorker)
    fd = os.memfd_create("test-no-part")
    socket.send_fds(theirs, [packet], [fd])
    with pytest.raises(PartitionError, match="channel: a part of a message is too short, too long, or has descriptors"):
        next(gateway.receive())
    assert len(memory_files(os.getpid(), "test-no-part")) == 1
    os.close(fd)
    theirs.close()
    gateway.close()


def _close(ends: Pair) -> None:
    for end in ends:
        end.close()
