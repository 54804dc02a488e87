"""The planner against every fixed (batch, partition) assignment, live, on two partitions of unequal speed.

The models sleep (backend `timed`), so that gateway and client take nothing from the workers, and every batch on the
partition `slow` takes three times as long as on `fast`. The servers stay up side by side and are measured in turns.
Of an assignment that cannot take the lowest rate, however it is scheduled, the bound stands in the table instead.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conftest import Report
from benchmarks.support.processes import gateway, pinned
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig

CLIENT_CORE, FAST_CORE = 0, 1
SLO_MS = 150.0
RATES = (250.0, 330.0)
"""Requests a second: about 65 % and 85 % of the capacity of both partitions in full batches."""
ROUNDS = 2
SECONDS, WARMUP_S = 4.0, 1.5
LARGEST = 16
BATCHES = (1, 4, 8, LARGEST)
SIZES = (1, 2, 4, 8, LARGEST)
LATENCY_MS = {"encode": {rows: 5 + rows for rows in SIZES}, "rank": {rows: 2 + 2 * rows for rows in SIZES}}
SLOWDOWN = 3
FILE_MIB = {"encode": 2, "rank": 1}
PIPELINE = f"""
slo_ms: {SLO_MS:g}
stages:
  encode: {{model: encode, inputs: {{x: request.x}}}}
  rank: {{model: rank, inputs: {{x: encode.y}}}}
outputs: {{y: rank.y}}
"""
PLANNED = "planned, both"
MAX_DELAY_MS = 20
FAST = f"name: fast, cores: [{FAST_CORE}]"
SLOW = f"name: slow, cores: [{CLIENT_CORE}], slowdown: {SLOWDOWN}"
# A model is loaded only where it fits, so that the memory limits keep one stage on one partition.
PLACES = {
    "fast": [FAST],
    "slow": [SLOW],
    "both": [FAST, SLOW],
    "encode fast, rank slow": [f"{FAST}, memory_mb: 2", f"{SLOW}, memory_mb: 1"],
    "encode slow, rank fast": [f"{FAST}, memory_mb: 1", f"{SLOW}, memory_mb: 2"],
}


def most(place: str, batch: int) -> float:
    """Upper bound on an assignment's requests a second: full batches without pauses."""
    encode_s, rank_s = (table[batch] / batch / 1000 for table in LATENCY_MS.values())
    match place:
        case "encode fast, rank slow":
            return 1 / max(encode_s, SLOWDOWN * rank_s)
        case "encode slow, rank fast":
            return 1 / max(SLOWDOWN * encode_s, rank_s)
    speed = {"fast": 1, "slow": 1 / SLOWDOWN, "both": 1 + 1 / SLOWDOWN}[place]
    return speed / (encode_s + rank_s)


BOUNDS = {(place, batch): most(place, batch) for place in PLACES for batch in BATCHES}


def label(place: str, batch: int) -> str:
    return f"fixed, {place}, batches of {batch}"


def configurations() -> dict[str, str]:
    """The configuration files by label: the planned one, and the fixed ones whose bound exceeds the lowest rate."""
    settings = {PLANNED: (PLACES["both"], f"max_batch_size: {LARGEST}")}
    for (place, batch), bound in BOUNDS.items():
        if bound >= min(RATES):
            policy = f"policy: {{name: timeout, preferred: [{batch}], max_delay_ms: {MAX_DELAY_MS}}}"
            settings[label(place, batch)] = PLACES[place], f"max_batch_size: {batch}\n{policy}"
    return {
        name: f"partitions: [{', '.join(f'{{{each}}}' for each in partitions)}]\n{rest}\n"
        for name, (partitions, rest) in settings.items()
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository; files are padded, since a model's memory is taken to be the size of its file."""
    root = tmp_path_factory.mktemp("timed")
    tensor = {"datatype": "FP32", "shape": [4]}
    for name, table in LATENCY_MS.items():
        model = {"inputs": [{"name": "x"} | tensor], "outputs": [{"name": "y"} | tensor]}
        text = json.dumps(model | {"max_batch_size": LARGEST, "latency_ms": table})
        path = root / name / "1" / "model.timed.json"
        path.parent.mkdir(parents=True)
        path.write_text(text.ljust(FILE_MIB[name] << 20))
    (root / "search").mkdir()
    (root / "search" / "pipeline.yaml").write_text(PIPELINE)
    return root


@pytest.fixture(scope="module")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of a server for every configuration; servers start one by one, since each measures its models."""
    with ExitStack() as stack:
        urls = {}
        for name, config in configurations().items():
            directory = tmp_path_factory.mktemp("server")
            server = stack.enter_context(gateway(directory, config, None, "--repository", str(models)))
            server.keep_on(CLIENT_CORE)
            urls[name] = f"http://127.0.0.1:{server.http_port}"
        stack.enter_context(pinned(CLIENT_CORE))
        yield urls


def goodput(url: str, rate: float, seed: int) -> float:
    """Requests a second within the objective; fails when requests failed."""
    config = RunConfig(
        target=url,
        model="search",
        rate=rate,
        duration_s=SECONDS,
        warmup_s=WARMUP_S,
        slo_ms=SLO_MS,
        seed=seed,
        connections=1024,
    )
    metrics = run(config).metrics
    assert not metrics.error, f"{metrics.error} requests at {rate:g} a second failed"
    return metrics.goodput_per_s


def in_turns(servers: dict[str, str], measure: Callable[[str, float, int], float]) -> dict[str, list[float]]:
    """The mean over the rounds, by configuration and rate; all configurations of a round have the same arrivals."""
    sums = {name: [0.0] * len(RATES) for name in servers}
    for seed in range(ROUNDS):
        for index, rate in enumerate(RATES):
            for name, url in servers.items():
                sums[name][index] += measure(url, rate, seed) / ROUNDS
    return sums


def test_planned_against_fixed(benchmark: Any, servers: dict[str, str], report: Report) -> None:
    """Goodput of every configuration at every rate, and of the planned one against the best fixed one."""
    found = benchmark.pedantic(in_turns, args=(servers, goodput), rounds=1)
    planned = found.pop(PLANNED)
    what = f"goodput at {' and '.join(f'{rate:g}' for rate in RATES)} requests/s"
    report(f"{what}: {PLANNED}", " ".join(f"{each:5.1f}" for each in planned), "")
    for assignment, bound in BOUNDS.items():
        fixed = found.setdefault(label(*assignment), [])
        value = " ".join(f"{each:5.1f}" for each in fixed) if fixed else f"below {bound:.0f}"
        report(f"{what}: {label(*assignment)}", value, "")
        fixed += [bound] * (len(RATES) - len(fixed))
    for rate, ours, theirs in zip(RATES, planned, zip(*found.values(), strict=True), strict=True):
        against = f"planned against the best fixed assignment at {rate:g} requests/s"
        report(against, f"{ours / max(theirs):.3f}x", ">= 1x")
