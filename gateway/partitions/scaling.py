"""Scaled classes as clients and metrics see them, and the orders for their numbers of partitions."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.batcher.interface.decisions import SetPartitions
from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.scaling.scaler import ClassStatus
from sluice.gateway.observability.logs import log
from sluice.gateway.observability.metrics import MetricsSource
from sluice.models.units import NS_PER_S

logger = logging.getLogger(__name__)


class Wants(Protocol):
    """The source of a class: where its workers come from."""

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        """Have workers for `count` slots; of those that are too many, the ones in `leaving` go first."""
        ...


class Scaling:
    """The scaled `classes` of a server, whose states `status` has by name, and the sources of their workers."""

    def __init__(
        self,
        classes: Mapping[str, ScaledClass],
        status: Callable[[], Mapping[str, ClassStatus]],
        sources: Mapping[str, Wants],
    ) -> None:
        self._classes = classes
        self._status = status
        self._sources = sources
        for name, scaled in classes.items():
            sources[name].want(scaled.initial)

    def carry_out(self, order: SetPartitions) -> None:
        """Have the source of a class follow an order."""
        status = self._status()[order.name]
        log(
            logger,
            logging.INFO,
            "partitions are wanted",
            **{"class": order.name},
            count=order.count,
            ready=status.ready,
            panic=status.is_panicking,
            **({"given_up": ", ".join(order.leaving)} if order.leaving else {}),
        )
        self._sources[order.name].want(order.count, order.leaving)

    def report(self) -> dict[str, dict[str, object]]:
        """The classes by name, for clients and for KEDA.

        `wanted` are those that are to have workers: what the load requires (`needed`), and those beyond that which are
        still busy. `ready` are up and get batches, `leaving` are up and get none. `busy` is how many would be busy all
        the time: by the last minute, by the last seconds, and as foreseen.
        """
        return {
            name: {
                "wanted": status.ordered,
                "needed": status.wanted,
                "ready": status.ready,
                "leaving": status.leaving,
                "min": self._classes[name].least,
                "max": self._classes[name].most,
                "panic": status.is_panicking,
                "busy": {
                    "stable": round(status.demand.stable, 3),
                    "panic": round(status.demand.panic, 3),
                    "ahead": round(status.demand.ahead, 3),
                },
                "start_s": round(status.start_ns / NS_PER_S, 3),
            }
            for name, status in self._status().items()
        }


class ScalingMetrics(MetricsSource):
    """The numbers of partitions of scaled classes."""

    def __init__(self, status: Callable[[], Mapping[str, ClassStatus]]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The families with few samples, for prometheus_client."""
        wanted = GaugeMetricFamily(
            "sluice_partitions_wanted",
            "Partitions of the class that are to have workers: as many as the load requires, and those that are to go "
            "but are still busy.",
            labels=["class"],
        )
        ready = GaugeMetricFamily(
            "sluice_partitions_ready",
            "Partitions of the class that are up and get batches.",
            labels=["class"],
        )
        panic = GaugeMetricFamily(
            "sluice_partitions_panic",
            "1 while the class only gets more partitions, because its load has grown fast, else 0.",
            labels=["class"],
        )
        for name, status in self._status().items():
            wanted.add_metric([name], status.ordered)
            ready.add_metric([name], status.ready)
            panic.add_metric([name], int(status.is_panicking))
        yield from (wanted, ready, panic)
