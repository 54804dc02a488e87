"""The limit of open files, and the connections that it allows."""

import resource
from collections.abc import Sequence
from typing import NamedTuple

from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.mps.partitions.partition import MpsPartition, Partition

OWN_FILES = 256
"""Descriptors for files of models, the metrics port, logs, and the workers of a few partitions."""
FILES_EACH = 8
"""Descriptors for the worker of one partition more, and the memory that it shares."""
NEEDED_FILES_MPS = 16_384
"""NVIDIA's advice for processes under MPS, which otherwise fail to create shared memory."""
_LEAST = 16


class OpenFiles(NamedTuple):
    """The limits of open files: now, the hard one, what a server needs, and what it raises its limit to.

    `http` and `grpc` are the connections that this allows.
    """

    soft: int
    hard: int
    needed: int
    raised: int
    http: int
    grpc: int


def open_files(settings: FrontDoorSettings, partitions: Sequence[Partition] = ()) -> OpenFiles:
    """The limits of this process for a server with these settings; nothing is raised yet."""
    wanted = settings.max_connections + settings.grpc_connections
    own = OWN_FILES + FILES_EACH * len(partitions)
    needed = wanted + own
    if any(isinstance(each, MpsPartition) for each in partitions):
        needed = max(needed, NEEDED_FILES_MPS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OpenFiles(soft, hard, needed, soft, settings.max_connections, settings.grpc_connections)
    raised = max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard))
    free = raised - own
    if free >= wanted:
        return OpenFiles(soft, hard, needed, raised, settings.max_connections, settings.grpc_connections)
    http, grpc = max(free * 3 // 4, _LEAST), max(free // 4, _LEAST)
    allowed = min(settings.max_connections, http), min(settings.grpc_connections, grpc)
    return OpenFiles(soft, hard, needed, raised, *allowed)


def raise_open_files(settings: FrontDoorSettings, partitions: Sequence[Partition]) -> OpenFiles:
    """Raise the soft limit as far as is needed and allowed; returns the limits as `open_files`."""
    files = open_files(settings, partitions)
    if files.raised != files.soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files.raised, files.hard))
    return files
