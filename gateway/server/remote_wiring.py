"""Builds the executor over remote workers: credentials, sources, and how models are described to workers."""

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sluice.gateway.cluster.sources import worker_sources
from sluice.gateway.config.remote_settings import PartitionSettings
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.executors.remote.executor import RemoteExecutor, RemoteSlots, SharedParts
from sluice.gateway.executors.remote.models import RemoteModels
from sluice.gateway.executors.remote.session import OnMessage, OpenSession, WorkerSession
from sluice.gateway.partitions.inventory import LinkReport
from sluice.gateway.tensors.body_memory import LARGE_BYTES, BodyMemory
from sluice.gateway.version import server_version
from sluice.gateway.worker_protocol.client import Credentials, open_session
from sluice.gateway.worker_protocol.messages import Hello
from sluice.models.client_tls import ClientTls
from sluice.models.distribution.local_files import LocalFiles
from sluice.models.errors import ConfigError
from sluice.models.spec import ModelSpec
from sluice.models.units import NS_PER_MS
from sluice.mps.ipc.messages import ModelFile

LEASE_S = 2.2
"""A worker that is silent for this time is lost. The client looks three times as often, so it is noticed within 3 s."""
_OPTIONS = {"--cacert": "tls.ca", "--cert": "tls.certificate", "--key": "tls.private_key"}


def remote_executor(
    config: ServerConfig,
    shared: SharedParts,
    specs: Mapping[str, ModelSpec],
    files: Mapping[str, Mapping[str, ModelFile]],
    residency: Mapping[str, Sequence[str]],
    clock: Callable[[], int],
) -> RemoteExecutor:
    """The executor over the remote partitions of a configuration.

    `specs` are the specs of models by key; by partition, `files` are the files of models by key, and `residency` the
    models that it begins with. Raises ConfigError for a key or certificates that cannot be read.
    """
    settings = config.partitions
    assert isinstance(settings, PartitionSettings)
    credentials = _credentials(settings)
    gateway = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    sources = worker_sources(settings.classes, gateway, server_version(), credentials.key)
    classes = {
        each.name: RemoteSlots(
            each.profile_kind,
            sources[each.name],
            {slot: files[slot] for slot in each.slots},
            {slot: residency[slot] for slot in each.slots},
        )
        for each in settings.classes
    }
    return RemoteExecutor(
        classes,
        shared,
        specs,
        _opener(credentials, Hello(server_version(), gateway, LEASE_S), shared.bodies),
        RemoteModels(LocalFiles(config.copies)),
        server_version(),
        clock,
        config.batch_timeout_s,
        strict=config.strict,
    )


def link_reports(remote: RemoteExecutor) -> Callable[[str], LinkReport | None]:
    """Gives the present way to a node, for reports; None if nothing is known of it."""

    def report(node: str) -> LinkReport | None:
        link = remote.links.get(node)
        if link is None or not link.round_trip_ns:
            return None
        mb_per_s = round(link.bytes_per_s / 1e6, 3) if link.bytes_per_s else None
        return LinkReport(round(link.round_trip_ns / NS_PER_MS, 3), mb_per_s)

    return report


def _credentials(settings: PartitionSettings) -> Credentials:
    tls = settings.tls
    try:
        return Credentials.read(
            settings.key_file,
            None if tls is None else ClientTls(tls.ca, tls.certificate, tls.private_key),
            "" if tls is None else tls.server_name,
        )
    except ConfigError as error:
        text = " ".join(_OPTIONS.get(word, word) for word in str(error).split(" "))
        raise ConfigError(f"partitions: {text}") from error


def _opener(credentials: Credentials, hello: Hello, bodies: BodyMemory) -> OpenSession:
    def memory(nbytes: int) -> memoryview | None:
        """Shared memory for large outputs: workers of this machine read them there."""
        return bodies.allocate(nbytes) if nbytes >= LARGE_BYTES else None

    async def open(
        url: str, kind: str, workers: int, on_message: OnMessage, on_closed: Callable[[str], None]
    ) -> WorkerSession:
        greeting = msgspec.structs.replace(hello, kind=kind, workers=workers)
        return await open_session(url, credentials, greeting, on_message, on_closed, memory)

    return open
