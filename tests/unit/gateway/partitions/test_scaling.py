"""Scaled classes as clients, metrics and sources see them."""

from prometheus_client.core import Metric

from sluice.batcher.interface.decisions import SetPartitions
from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.scaling.autoscaler import ClassDemand
from sluice.batcher.scaling.scaler import ClassStatus
from sluice.gateway.partitions.scaling import Scaling, ScalingMetrics

STATUS = ClassStatus(2, 3, 1, 1, True, ClassDemand(1.2345, 2.0, 0.0), 7_600_000_000)


class Source:
    def __init__(self) -> None:
        self.wants: list[tuple[int, tuple[str, ...]]] = []

    def want(self, count: int, leaving: tuple[str, ...] = ()) -> None:
        self.wants.append((count, leaving))


def scaling(source: Source) -> Scaling:
    scaled = ScaledClass("edge", ("edge-0", "edge-1", "edge-2"), 1, 3)
    return Scaling({"edge": scaled}, lambda: {"edge": STATUS}, {"edge": source, "other": Source()})


def test_a_class_begins_with_its_initial_number_and_follows_orders() -> None:
    source = Source()
    scaling(source).carry_out(SetPartitions("edge", 2, ("edge-2",)))
    assert source.wants == [(1, ()), (2, ("edge-2",))]


def test_the_report_has_what_is_wanted_and_why() -> None:
    assert scaling(Source()).report() == {
        "edge": {
            "wanted": 3,
            "needed": 2,
            "ready": 1,
            "leaving": 1,
            "min": 1,
            "max": 3,
            "panic": True,
            "busy": {"stable": 1.234, "panic": 2.0, "ahead": 0.0},
            "start_s": 7.6,
        }
    }


def test_metrics_have_the_class_as_a_label() -> None:
    found: list[Metric] = list(ScalingMetrics(lambda: {"edge": STATUS}).collect())
    samples = {sample.name: (sample.labels, sample.value) for family in found for sample in family.samples}
    assert samples == {
        "sluice_partitions_wanted": ({"class": "edge"}, 3),
        "sluice_partitions_ready": ({"class": "edge"}, 1),
        "sluice_partitions_panic": ({"class": "edge"}, 1),
    }
