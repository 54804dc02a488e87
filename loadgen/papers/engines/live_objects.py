"""Objects as models on worker servers: each request reads one, and runs on a node that holds it, or that loads it."""

import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from onnx import TensorProto, helper

from sluice.loadgen.papers.engines.chaining_client import V2Connection
from sluice.loadgen.papers.engines.image_models import save_graph
from sluice.loadgen.papers.engines.live_server import live_server, live_worker
from sluice.loadgen.records.server_metrics import scrape
from sluice.models.errors import ServingError

WIDTH, HEIGHT = 500, 1000
"""An object is a matrix of as many floats: 2 MB."""
_TOLERANCE = 1e-3


class LiveReads(msgspec.Struct, frozen=True):
    """Reads of objects, the loads that they waited for, and the nodes on which each object was read."""

    reads: int
    loads: int
    nodes_by_object: dict[str, int]

    @property
    def hit_rate(self) -> float:
        """The part of the reads that waited for no load."""
        return 1 - self.loads / self.reads


def read_objects(folder: Path, objects: int, memory_mb: int, reads: int, cores: Sequence[int]) -> LiveReads:
    """Read objects by chance, one after the other, behind a gateway with a worker server on each core.

    Each of them is a node with memory for models of `memory_mb`. The result of each read is checked.
    """
    source, matrices = np.random.default_rng(0), []
    for number in range(objects):
        matrix = source.standard_normal((WIDTH, HEIGHT), np.float32)
        takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
        gives = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", HEIGHT])
        path = folder / "repository" / f"object-{number}" / "1" / "model.onnx"
        save_graph(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], takes, gives, {"w": matrix})
        matrices.append(matrix)
    with ExitStack() as stack:
        workers = [stack.enter_context(live_worker(folder, f"node{core}", core)) for core in cores]
        remote = {"name": "node", "kind": workers[0].kind, "urls": [each.url for each in workers]}
        config = {
            "partitions": {"remote": [{**remote, "memory_mb": memory_mb}]},
            "residency": {"loading": "demand"},
        }
        url = stack.enter_context(live_server(folder, config))
        connection = V2Connection(url, as_json=False)
        stack.callback(connection.close)
        chance, row = random.Random(0), np.ones((1, WIDTH), np.float32)
        for _ in range(reads):
            number = chance.randrange(objects)
            answer = connection.ask(f"object-{number}", row)
            if not np.allclose(answer, row @ matrices[number], rtol=0, atol=_TOLERANCE):
                raise ServingError(f"object {number} was not what was read")
        counters = scrape(f"{url}/metrics")
    loads = sum(value for (metric, _, _), value in counters.items() if metric == "sluice_model_loads_total")
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for (metric, model, partition), value in counters.items():
        if metric == "sluice_batch_rows_count" and value:
            nodes[model].add(partition)
    return LiveReads(reads, int(loads), {model: len(found) for model, found in nodes.items()})
