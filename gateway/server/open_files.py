"""The limit of open files, and the connections that it allows."""

import resource

from sluice.gateway.config.front_door import FrontDoorSettings

OWN_FILES = 256
"""Descriptors for workers, their memory, files of models, the metrics port and logs."""
_LEAST = 16


def allowed_connections(settings: FrontDoorSettings) -> tuple[int, int]:
    """The connections over HTTP and over gRPC that the limit of open files allows, after the soft one is raised."""
    wanted = settings.max_connections + settings.grpc_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return settings.max_connections, settings.grpc_connections
    raised = wanted + OWN_FILES if hard == resource.RLIM_INFINITY else min(wanted + OWN_FILES, hard)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    free = max(soft, raised) - OWN_FILES
    if free >= wanted:
        return settings.max_connections, settings.grpc_connections
    http, grpc = max(free * 3 // 4, _LEAST), max(free // 4, _LEAST)
    return min(settings.max_connections, http), min(settings.grpc_connections, grpc)
