"""The MPS daemons that a server's partitions need while it runs."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from sluice.gateway.observability.logs import log
from sluice.mps.daemon.control import MpsControl
from sluice.mps.daemon.daemon import DaemonInUse, MpsDaemon
from sluice.mps.daemon.watchdog import MpsWatchdog
from sluice.mps.partitions.partition import MpsPartition, Partition, ShareMode

logger = logging.getLogger(__name__)


@contextmanager
def mps_daemons(
    partitions: Iterable[Partition], adopted: Callable[[str], None] | None = None
) -> Iterator[Mapping[str, MpsControl]]:
    """The control of a daemon for each device under MPS, by UUID; the daemons end with the context.

    A daemon that ends early is restarted. Raises ControlFailed if a daemon cannot be started, since workers would
    silently run without MPS. With `adopted`, the daemon of another process is used if there is one, and `adopted` gets
    the reason. Shares that name their daemon need none of ours.
    """
    shares: dict[str, list[MpsPartition]] = {}
    for each in partitions:
        if isinstance(each, MpsPartition) and not each.pipes:
            shares.setdefault(each.uuid, []).append(each)
    # NVIDIA's servers of protocol 3 read the same variable.
    protocol = 3 if os.environ.get("CUDA_MPS_PROTOCOL_VERSION") == "3" else 2
    with ExitStack() as stack:
        controls = {}
        for device, sharing in sorted(shares.items()):
            sets = {each.name: each.share_percent for each in sharing if each.mode is ShareMode.STATIC}
            daemon = MpsDaemon(device, sets=sets, protocol=protocol)
            watchdog = MpsWatchdog(daemon, partial(logger.error, "%s"))
            stack.callback(watchdog.stop)
            try:
                watchdog.start()
            except DaemonInUse as error:
                if adopted is None:
                    raise
                adopted(f"{error}; its clients may disturb what is measured beside them")
            controls[device] = daemon.control
            log(logger, logging.INFO, "mps daemon ready", device=device, pid=daemon.pid, pipes=str(daemon.pipes))
        yield controls
