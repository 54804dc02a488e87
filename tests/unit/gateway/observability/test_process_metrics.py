"""Metrics of processes."""

import asyncio
import os

from prometheus_client.parser import text_string_to_metric_families

from sluice.gateway.observability.exposition import exposition
from sluice.gateway.observability.process_metrics import ProcessMetrics


def test_the_own_process_has_the_usual_names_and_others_a_label() -> None:
    metrics = ProcessMetrics(lambda: {"worker cpu0": os.getpid(), "worker gone": 0})
    assert exposition(metrics.groups()) == b""
    asyncio.run(metrics.refresh())
    families = {family.name: family for family in text_string_to_metric_families(exposition(metrics.groups()).decode())}
    assert {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
        "process_max_fds",
    } <= families.keys()
    (own,) = families["process_resident_memory_bytes"].samples
    (worker,) = families["sluice_process_resident_memory_bytes"].samples
    assert worker.labels == {"process": "worker cpu0"}
    assert 0.5 < worker.value / own.value < 2
