"""The messages between the gateway and its process that talks to Ray, over a SEQPACKET socket."""

import msgspec

from sluice.gateway.config.ray_settings import RaySettings


class ClassOrder(msgspec.Struct, frozen=True, array_like=True):
    """A class of partitions: its settings with all that they leave to the cluster, and its slots.

    `held` are the leases that the gateway has from a process before this one: slots by number, with their epochs.
    """

    settings: RaySettings
    slots: int
    want: int
    held: dict[int, int]


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message: the classes by name, the gateway's name, the workers' key ("" for none), and the version."""

    classes: dict[str, ClassOrder]
    gateway: str
    key: str
    version: str


class Want(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The class is to have `count` workers; the slots in `leaving` are given up."""

    name: str
    count: int
    leaving: tuple[int, ...]


class Tick(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The gateway lives: leases are renewed only while it says so."""


class Leave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Give up all leases and exit."""


ToRay = Begin | Want | Tick | Leave


class Granted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All leases of the gateway in a class: slots with their epochs."""

    name: str
    leases: dict[int, int]


class WorkerAt(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The worker of a leased slot is at `url`; "" with a reason while there is none.

    `number` grows with each worker that is started for the slot.
    """

    name: str
    slot: int
    number: int
    url: str
    reason: str


class RayState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`trouble` with the cluster in a sentence; "" if it answers."""

    trouble: str


FromRay = Granted | WorkerAt | RayState
