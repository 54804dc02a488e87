"""Partitions, GPUs, MPS daemons and plans as lines of text."""

from collections.abc import Sequence

from sluice.gateway.config.remote_settings import RemoteClass
from sluice.gateway.partitions.inventory import PartitionStatus
from sluice.models.processes import process_name
from sluice.mps.daemon.inventory import RunningDaemon
from sluice.mps.mig.desired import GpuPlan
from sluice.mps.mig.inventory import Gpu
from sluice.mps.mig.packer import counted
from sluice.mps.mig.placements import Layout, free_placements, largest_first
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition


def partition_lines(partitions: Sequence[Partition]) -> list[str]:
    """A line for each partition of a server."""
    return [
        f"{each.name}: {_device(each)}"
        + ("" if each.memory_mb is None else f", {each.memory_mb:g} MiB {_bounded(each)}")
        + (f", {each.hard_memory_mb:g} MiB at most" if isinstance(each, CpuPartition) and each.hard_memory_mb else "")
        for each in partitions
    ]


def remote_lines(classes: Sequence[RemoteClass]) -> list[str]:
    """A line for each slot whose worker has a known address, and one for the slots of every other class."""
    lines = []
    for each in classes:
        kind = each.profile_kind or "of the kind that the cluster has"
        memory = "" if each.memory_mb is None else f", {each.memory_mb:g} MiB for models"
        if each.urls is not None:
            lines += [f"{slot}: {kind} at {url}{memory}" for slot, url in zip(each.slots, each.urls, strict=True)]
            continue
        slots = each.slots
        names = f"{slots[0]} to {slots[-1]}" if slots[1:] else "".join(slots) or f"{each.name}-0 and on"
        lines.append(f"{names}: {kind}, {_placed_by(each)}{memory}")
    return lines


def status_rows(statuses: Sequence[PartitionStatus]) -> list[tuple[str, ...]]:
    """The rows of a table, with its header, of the partitions of a running server."""
    rows: list[tuple[str, ...]] = [("partition", "kind", "node", "address", "models", "state")]
    for each in statuses:
        state = each.lost or ("up" if each.worker is not None else "no worker")
        rows.append((each.partition.name, each.profile_kind, each.node, each.url, str(len(each.models)), state))
    return rows


def _placed_by(given: RemoteClass) -> str:
    if given.dns is not None:
        return f"found in DNS as {given.dns.name}, port {given.dns.port}"
    assert given.ray is not None
    return f"placed by Ray, cluster {given.ray.address}"


def _bounded(partition: Partition) -> str:
    return "at most" if isinstance(partition, MpsPartition) else "for models"


def _device(partition: Partition) -> str:
    match partition:
        case CpuPartition():
            return f"{'core' if len(partition.cores) == 1 else 'cores'} {', '.join(map(str, partition.cores))}"
        case MigPartition():
            return f"{partition.profile} {partition.uuid}"
        case _:
            device = f"{partition.profile} {partition.uuid}".lstrip()
            return f"{partition.share_percent} % ({partition.mode}) of {device}"


def gpu_lines(gpu: Gpu) -> list[str]:
    """A GPU, its instances with the processes that use them, and the free room."""
    if gpu.lost:
        return [f"GPU {gpu.index}: lost (NVML: {gpu.lost})"]
    mode = {None: "no MIG", False: "MIG off", True: "MIG on"}[gpu.mig]
    lines = [f"GPU {gpu.index}: {gpu.name}, {gpu.memory_mib} MiB, {gpu.uuid}, {mode}{_used(gpu.users)}"]
    for each in sorted(gpu.instances, key=lambda instance: instance.placement.start):
        profile = each.placement.profile
        sizes = [f"{profile.multiprocessors} multiprocessors"] if profile.multiprocessors else []
        sizes += [f"{profile.memory_mib} MiB"] if profile.memory_mib else []
        name = each.uuid or "no compute instance"
        lines.append(f"  {', '.join([str(each.placement), *sizes, name])}{_used(each.users)}")
    lines += [f"  {uuid}, whose profile and placement are readable by root only" for uuid in gpu.unplaced]
    if gpu.geometry is not None and not gpu.unplaced:
        free = [each.profile.name for each in free_placements(gpu.geometry, gpu.layout)]
        if gpu.mig:
            lines.append(f"  room for one of: {', '.join(dict.fromkeys(free)) or 'nothing'}")
        else:
            lines.append(f"  MIG profiles: {', '.join(profile.name for profile in gpu.geometry.profiles)}")
    return lines


def mps_lines(daemon: RunningDaemon) -> list[str]:
    """An MPS daemon, its servers, and their clients."""
    devices = daemon.devices or "all devices"
    trouble = f": {daemon.trouble}" if daemon.trouble else ""
    lines = [f"MPS daemon (pid {daemon.pid}) of {devices}, in {daemon.pipes}{trouble}"]
    for server in daemon.servers:
        users = [process_name(client.pid) for client in daemon.clients if client.server == server.pid]
        lines.append(f"  server (pid {server.pid}): {server.status}{_used(users) or ', without clients'}")
    return lines


def plan_lines(device: int | str, plan: GpuPlan) -> list[str]:
    """The present and wanted layout of a GPU, the steps, and the reasons that prevent them."""
    lines = [
        f"GPU {device} ({plan.geometry.gpu})",
        f"  present: {_layout(plan.present)}",
        f"  wanted:  {_layout(plan.wanted)}",
    ]
    lines += [f"  {name}: {counted(each.name for each in share)}" for name, share in plan.shares.items()]
    lines += [f"  {number}. {step}" for number, step in enumerate(plan.steps, 1)] or ["  nothing to do"]
    lines += [f"  refused: {reason}" for reason in plan.refusals]
    return lines


def _layout(layout: Layout) -> str:
    return counted(map(str, largest_first(layout))) or "no instances"


def _used(users: Sequence[str]) -> str:
    return f", in use by {', '.join(users)}" if users else ""
