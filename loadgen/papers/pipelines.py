"""An ensemble and a cascade in one request, against one request for each model, measured on a real server.

The thesis Serverless on Accelerators (UC Berkeley, EECS-2022-88, section 3.5) runs two pipelines on Cloudburst, where
one call runs all of a pipeline, and on Clipper, where the client calls each model and passes its answer on.
"""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sluice.loadgen.papers.engines.live_server import live_server
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    PaperExperiment,
    Plot,
    gated,
)
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.run.runner import run as run_load
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.mps.partitions.cpu import available_cores

Rows = npt.NDArray[np.float32]

LAYERS = {"prep": [64, 64], "first": [64, 256, 10], "second": [64, 512, 10], "large": [64, 2048, 10]}
"""The models by the widths of their layers; `prep` stands for the thesis' preprocessing."""
ESCALATED = 1 / 3
"""The share of the rows that a cascade's first model is not sure of."""
ROWS = 60
BATCHES = (1, 4, 16, 64)
THESIS_MS = {"ensemble": (0.34251, 0.215425), "cascade": (3.07523, 2.179395)}
"""Table 3.1: mean latency on Clipper and on Cloudburst."""
_PIPELINE = """stages:
  prep: {{model: prep, inputs: {{x: request.x}}}}
  first: {{model: first, inputs: {{x: prep.y}}}}
{rest}
"""
_ENSEMBLE = """  second: {model: second, inputs: {x: prep.y}}
  vote: {combine: mean, of: [first.y, second.y]}
outputs:
  y: {from: [vote.y]}"""
_CASCADE = """  large:
    model: large
    inputs: {{x: prep.y}}
    when: {{stage: first, output: y, confidence: max, below: {below}}}
outputs:
  y: {{from: [large.y, first.y]}}"""


class LatencyRound(msgspec.Struct, frozen=True):
    """Mean latencies of one round in ms, by pipeline: of one request for all, and of one request for each model."""

    whole: dict[str, float]
    by_model: dict[str, float]


def write_repository(folder: Path) -> Path:
    """Write the models and both pipelines, and the rows of the requests; returns the file of the rows."""
    weights = {name: list(_weights(number, layers)) for number, (name, layers) in enumerate(LAYERS.items())}
    for name, each in weights.items():
        _save(folder / "repository" / name / "1" / "model.onnx", each)
    rows = np.random.default_rng(0).standard_normal((ROWS, 64), np.float32)
    sure = _answers(weights["first"], _answers(weights["prep"], rows)).max(axis=1)
    below = round(float(np.quantile(sure, ESCALATED)), 6)
    for name, rest in (("ensemble", _ENSEMBLE), ("cascade", _CASCADE.format(below=below))):
        (folder / "repository" / name).mkdir()
        (folder / "repository" / name / "pipeline.yaml").write_text(_PIPELINE.format(rest=rest))
    np.savez(folder / "rows.npz", x=rows)
    return folder / "rows.npz"


def measured(url: str, rows: Path, seconds: float) -> LatencyRound:
    """One client that waits for each answer asks each pipeline, and each of its models, for some seconds."""

    def latency_ms(model: str) -> float:
        config = RunConfig(
            target=url,
            model=model,
            scenario=ScenarioName.SINGLE_STREAM,
            duration_s=seconds,
            warmup_s=0.1,
            samples=SampleSource(str(rows)),
        )
        latency = run_load(config).metrics.latency_ms
        assert latency is not None, f"{model} gave no answer"
        return latency.mean

    whole = {name: latency_ms(name) for name in THESIS_MS}
    alone = {name: latency_ms(name) for name in LAYERS}
    return LatencyRound(
        whole,
        {
            "ensemble": alone["prep"] + alone["first"] + alone["second"],
            "cascade": alone["prep"] + alone["first"] + ESCALATED * alone["large"],
        },
    )


def rows_per_s(url: str, rows: Path, batch: int, seconds: float) -> float:
    """Rows of the large model that a server takes a second, of two clients with requests of `batch` rows."""
    config = RunConfig(
        target=url,
        model="large",
        scenario=ScenarioName.CONCURRENCY,
        concurrency=2,
        duration_s=seconds,
        warmup_s=0.1,
        rows=batch,
        samples=SampleSource(str(rows)),
    )
    return run_load(config).metrics.completed_per_s * batch


def run(effort: Effort) -> ExperimentReport:
    """Rounds of both ways in turns, at least five unless it is quick; a real server never takes the same time twice."""
    rounds, seconds = (2, 0.3) if effort.quick else (max(5, effort.seeds), 1.0)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        rows = write_repository(folder)
        with live_server(folder, {"partitions": min(2, len(available_cores()))}) as url:
            found = [measured(url, rows, seconds) for _ in range(rounds)]
            throughput = {batch: rows_per_s(url, rows, batch, seconds) for batch in BATCHES}
    findings: list[ExperimentFinding] = []
    lines = ["| pipeline | a request for each model | one request | ratio of each round |", "|---|---|---|---|"]
    for name, (clipper, cloudburst) in THESIS_MS.items():
        ratios = [each.whole[name] / each.by_model[name] for each in found]
        bound = cloudburst / clipper
        findings.append(
            gated(
                f"mean latency of the {name} in one request, by that of a request for each model, median of rounds",
                f"{median(ratios):.3f}",
                published=f"{bound:.3f}",
                gate=f"at most {bound:.3f}",
                is_met=median(ratios) <= bound,
                why="tensors are small here: the hand-off of each stage to its worker, which both ways have, takes "
                "longer than a request over HTTP saves",
            )
        )
        times = (mean(each.by_model[name] for each in found), mean(each.whole[name] for each in found))
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(f"| {name} | {times[0]:.3f} ms | {times[1]:.3f} ms | {shown} |")
    gain = throughput[BATCHES[-1]] / throughput[1]
    findings.append(
        ExperimentFinding(
            f"rows a second in requests of {BATCHES[-1]}, by those in requests of one",
            f"{gain:.1f}",
            "10 (a GPU against a CPU, at larger batches)",
        )
    )
    plot = Plot(
        "throughput",
        "Rows of the large model a second by the size of requests",
        "rows of a request",
        "rows a second",
        (("two clients", tuple((float(batch), rate) for batch, rate in throughput.items())),),
        log_x=True,
    )
    return ExperimentReport(tuple(findings), ("\n".join(lines) + "\n",), (plot,))


def _weights(seed: int, layers: list[int]) -> Iterator[Rows]:
    source = np.random.default_rng(seed)
    for width, height in pairwise(layers):
        yield source.normal(0, np.sqrt(2 / width), (width, height)).astype(np.float32)


def _answers(weights: list[Rows], rows: Rows) -> Rows:
    """The answers of a model: products with its weights, ReLU between them, and softmax where there are several."""
    for number, each in enumerate(weights):
        rows = (np.maximum(rows, 0) if number else rows) @ each
    if len(weights) == 1:
        return rows
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def _save(path: Path, weights: list[Rows]) -> None:
    current, nodes = "x", []
    for number in range(len(weights)):
        if number:
            nodes.append(helper.make_node("Relu", [current], [f"h{number}"]))
            current = f"h{number}"
        last = "y" if len(weights) == 1 else f"z{number}"
        nodes.append(helper.make_node("MatMul", [current, f"w{number}"], [last]))
        current = last
    if len(weights) > 1:
        nodes.append(helper.make_node("Softmax", [current], ["y"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", weights[0].shape[0]), ("y", weights[-1].shape[1]))
    ]
    tensors = [numpy_helper.from_array(each, f"w{number}") for number, each in enumerate(weights)]
    graph = helper.make_graph(nodes, path.parent.parent.name, ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True)
    onnx.save(model, path)


EXPERIMENT = PaperExperiment(
    "pipelines",
    "one request for a whole pipeline takes less time than a request for each model",
    "Serverless on Accelerators, EECS-2022-88, section 3.5, Table 3.1 and Figure 3.3",
    given="the shapes of both pipelines and the ratios of the mean latencies",
    assumed="small models on the cores at hand, a third of the rows escalated, one client over HTTP that waits; a "
    "request for each model takes what the models take by themselves, one after the other; measured, so each run has "
    "figures of its own",
    run=run,
    measures_machine=True,
)
