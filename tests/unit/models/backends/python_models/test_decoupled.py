"""Messages about the batches of decoupled models, whenever their runs begin."""

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from sluice.models.backends.python_models.decoupled import Runs
from sluice.models.backends.python_models.wire import CancelBatch, MessageLink, TensorMemory, ToModel


@pytest.fixture
def link() -> Iterator[MessageLink]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield MessageLink(ours, ToModel)


@pytest.fixture
def outputs() -> Iterator[TensorMemory]:
    fd = os.memfd_create("sluice-test", os.MFD_CLOEXEC)
    yield TensorMemory(fd)
    os.close(fd)


def test_a_cancellation_that_comes_before_the_run_begins_counts(link: MessageLink, outputs: TensorMemory) -> None:
    runs = Runs(link)
    for number in (1, 2):
        runs.expect(number)
    runs.hear(CancelBatch(1))
    assert [runs.begin(number, outputs, nullcontext).is_cancelled for number in (1, 2)] == [True, False]


def test_a_cancellation_that_comes_after_the_end_is_of_no_other_run(link: MessageLink, outputs: TensorMemory) -> None:
    runs = Runs(link)
    runs.expect(1)
    runs.begin(1, outputs, nullcontext)
    runs.end(1)
    runs.hear(CancelBatch(1))
    runs.expect(2)
    assert not runs.begin(2, outputs, nullcontext).is_cancelled


def test_a_run_that_begins_after_the_other_end_has_gone_ends(link: MessageLink, outputs: TensorMemory) -> None:
    runs = Runs(link)
    runs.expect(1)
    runs.lost()
    run = runs.begin(1, outputs, nullcontext)
    assert run.is_cancelled
    with pytest.raises(EOFError):
        run.wait_closed()
