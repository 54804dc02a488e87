"""Counts verdicts of `loadgen compare` where the truth is known: `python -m scripts.compare_verdicts [COMPARISONS]`.

A simulated server with random service times is compared with itself, with one that takes 1.1 times as long, and the
other way round. The runs of a pair have the same arrivals, and service times of their own.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from sluice.loadgen.comparison.contrast import compare
from sluice.loadgen.comparison.interleaved import run_interleaved
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig

COMPARISONS = 100
SEEDS = 5
RATE, DURATION_S, SLO_MS = 70.0, 20.0, 100.0
THRESHOLD = 0.05
SERVICE_MS = (8.0, 9.0, 9.5, 10.0, 10.5, 12.0, 20.0)
"""Quantiles of the service time; the server is busy for about three quarters of the time."""


def write_server(folder: Path, factor: float) -> str:
    """Write a simulated server whose service times are multiplied; returns its URL as a target."""
    version = folder / "repository" / "model" / "1"
    version.mkdir(parents=True)
    tensor = [{"name": "x", "datatype": "FP32", "shape": [2]}]
    model = {"inputs": tensor, "outputs": [{**tensor[0], "name": "y"}], "max_batch_size": 1, "latency_ms": {"1": 10.0}}
    (version / "model.timed.json").write_text(json.dumps(model))
    times_ms = [time * factor for time in SERVICE_MS]
    (folder / "sim.yaml").write_text(
        "repository: repository\n"
        "partitions: [{name: cpu0, cores: 1}]\n"
        "policy: {name: none}\n"
        f"latency_ms: {{model: {{1: {10 * factor}}}}}\n"
        f"service_ms: {{model: {{1: {times_ms}}}}}\n"
    )
    return f"sim:{folder / 'sim.yaml'}"


def count_verdicts(first: str, second: str, comparisons: int) -> Counter[str]:
    """Compare two targets a number of times, each time with other seeds."""
    counts: Counter[str] = Counter()
    for number in range(comparisons):
        config = RunConfig(
            target="", model="model", rate=RATE, duration_s=DURATION_S, slo_ms=SLO_MS, seed=1000 * number
        )
        sides = run_interleaved(config, [first, second], SEEDS, run, lambda each: None, own_service_times=True)
        counts[compare(sides[0], sides[1], THRESHOLD).verdict] += 1
    return counts


def main() -> None:
    """Print a line for each pair of targets."""
    comparisons = int(sys.argv[1]) if len(sys.argv) > 1 else COMPARISONS
    with tempfile.TemporaryDirectory() as directory:
        usual, slow = Path(directory, "usual"), Path(directory, "slow")
        targets = {"A": write_server(usual, 1.0), "1.1 A": write_server(slow, 1.1)}
        for first, second in (("A", "A"), ("1.1 A", "A"), ("A", "1.1 A")):
            counts = count_verdicts(targets[first], targets[second], comparisons)
            text = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            print(f"{second:>5} against {first}: {text}", flush=True)


if __name__ == "__main__":
    main()
