"""A simulation file of models with given times, for tests."""

import json
from pathlib import Path

CASCADE = """
slo_ms: 100
stages:
  small: {model: small, inputs: {x: request.x}}
  large: {model: large, inputs: {x: request.x}, when: {stage: small, output: probs, below: 0.9}}
outputs:
  probs: {from: [large.probs, small.probs]}
"""


def write_simulation(directory: Path, **settings: object) -> str:
    """Write models `small` (10 ms) and `large` (20 ms), and a `cascade` of both; returns the target's URL.

    Batches of up to 4 rows take as long as one row. There is one partition with one core; `settings` replace those of
    the file.
    """
    for name, latency_ms in (("small", 10.0), ("large", 20.0)):
        model = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
            "outputs": [{"name": "probs", "datatype": "FP32", "shape": [2]}],
            "max_batch_size": 4,
            "latency_ms": {"4": latency_ms},
        }
        path = directory / "repository" / name / "1" / "model.timed.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(model))
    (directory / "repository" / "cascade").mkdir()
    (directory / "repository" / "cascade" / "pipeline.yaml").write_text(CASCADE)
    file = {
        "repository": "repository",
        "partitions": [{"name": "cpu0", "cores": 1}],
        "latency_ms": {"small": {"4": 10.0}, "large": {"4": 20.0}},
        "policy": {"name": "none"},
    } | settings
    # JSON is YAML, except for the integer keys of latency tables.
    (directory / "sim.yaml").write_text(json.dumps(file).replace('"4"', "4").replace('"8"', "8"))
    return f"sim:{directory / 'sim.yaml'}"
