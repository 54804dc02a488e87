"""Claims: who has a batch that waits behind another one, the worker that begins it or the gateway that takes it back.

A worker that runs a batch reads no messages, so it cannot give another one back. The claim of a batch is an eventfd
that both hold: the one that reads it first has the batch, and the kernel lets one of them only.
"""

import os
import select


def new_claim() -> int | None:
    """The descriptor of a new claim, which the caller owns; None if there are no descriptors left."""
    try:
        return os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:
        return None


def take(claim: int) -> bool:
    """Take what a claim stands for; False if the other side has."""
    try:
        os.eventfd_read(claim)
    except BlockingIOError:
        return False
    return True


def is_taken(claim: int) -> bool:
    """True if somebody has what a claim stands for."""
    poll = select.poll()
    poll.register(claim, select.POLLIN)
    return not poll.poll(0)
