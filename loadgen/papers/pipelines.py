"""An ensemble and a cascade in one request, against one request for each model, measured on a real server.

A. Ramkumar, Making the Most of Serverless Accelerators (UC Berkeley, EECS-2022-88, chapter 3), runs two pipelines on
Cloudburst, where one call runs all of a pipeline, and on Clipper, where the client calls each model and passes its
answer on. It says no more of its models than that they are vision models, and its milliseconds cannot be meant, so only
ratios compare.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from msgspec import structs

from sluice.loadgen.papers import stored_objects
from sluice.loadgen.papers.engines.chaining_client import CASCADE, ENSEMBLE, PassTimes, measure
from sluice.loadgen.papers.engines.image_models import answers, draw_images, save_classifier, save_preparation
from sluice.loadgen.papers.engines.live_server import live_server
from sluice.loadgen.papers.engines.live_shares import computed
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    GateVerdict,
    PaperExperiment,
    Plot,
    gated,
)
from sluice.loadgen.records.bootstrap import ratio_interval
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.run.runner import run as run_load
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.mps.partitions.cpu import available_cores

CHANNELS = (96, 192, 384)
"""A classifier of about the time that SqueezeNet takes on a core: 3 ms."""
SLOW_CHANNELS = (288, 576, 1152)
"""A classifier of several times that."""
IMAGES = 6
ESCALATED = 2
"""The images of which a cascade's first model is not sure: a third."""
BATCHES = (1, 4, 16)
CLIENTS = (1, 4)
MOST_S = 60.0
"""A measurement of throughput on a machine that is busy with other work takes at most so long."""
PUBLISHED = {ENSEMBLE: (0.34251, 0.215425), CASCADE: (3.07523, 2.179395)}
"""Table 3.1: mean latency on Clipper and on Cloudburst."""
FORMS = {"in JSON": True, "in binary": False}
"""The forms of tensors in requests and answers. Clipper's front end takes JSON alone."""
_PIPELINE = """stages:
  prep: {{model: prep, inputs: {{x: request.x}}}}
  first: {{model: first, inputs: {{x: prep.y}}}}
{rest}
"""
_ENSEMBLE = """  second: {model: second, inputs: {x: prep.y}}
  join: {combine: mean, of: [first.y, second.y]}
outputs:
  y: join.y"""
_CASCADE = """  second:
    model: second
    inputs: {{x: prep.y}}
    when: {{stage: first, output: y, confidence: max, below: {below}}}
  surer: {{combine: most_confident, of: [first.y, second.y]}}
outputs:
  y: {{from: [surer.y, first.y]}}"""


class Measured(NamedTuple):
    """Times of both ways by the form of tensors, and the least of all models of a pipeline for an image (ms).

    `rates` has the images that are classified a second, by clients and images of a request.
    """

    found: dict[str, list[PassTimes]]
    classifier_ms: float
    alone_ms: dict[str, float]
    rates: dict[int, dict[int, float]]


def write_repository(folder: Path, channels: Sequence[int]) -> float:
    """Write models, pipelines, `images.npy` and `prepared.npz`; gives the confidence from which the cascade ends."""
    repository = folder / "repository"
    files = {name: repository / name / "1" / "model.onnx" for name in ("prep", "first", "second")}
    save_preparation(files["prep"])
    for seed, name in enumerate(("first", "second")):
        save_classifier(files[name], seed, channels)
    images = draw_images(IMAGES)
    prepared = answers(files["prep"], images)
    np.save(folder / "images.npy", images)
    np.savez(folder / "prepared.npz", x=prepared)
    sure = np.sort(answers(files["first"], prepared).max(axis=1))
    below = float(sure[ESCALATED - 1] + sure[ESCALATED]) / 2
    for name, rest in ((ENSEMBLE, _ENSEMBLE), (CASCADE, _CASCADE.format(below=below))):
        (repository / name).mkdir()
        (repository / name / "pipeline.yaml").write_text(_PIPELINE.format(rest=rest))
    return below


def images_per_s(url: str, folder: Path, clients: int, batch: int, seconds: float) -> float:
    """Images that a server classifies a second, of clients that wait, with requests of `batch` images."""
    config = RunConfig(
        target=url,
        model="first",
        scenario=ScenarioName.CONCURRENCY,
        concurrency=clients,
        duration_s=MOST_S,
        min_duration_s=seconds,
        min_queries=4 * clients,
        warmup_s=0.0,
        rows=batch,
        samples=SampleSource(str(folder / "prepared.npz")),
    )
    return run_load(config).metrics.completed_per_s * batch


def run(effort: Effort) -> ExperimentReport:
    """Both ways in turns, image by image; a real server never takes the same time twice.

    A quick run has no slower classifiers.
    """
    passes, seconds, batches = (2, 0.3, BATCHES[::2]) if effort.quick else (max(5, 2 * effort.seeds), 2.0, BATCHES)
    usual = measured(CHANNELS, passes, batches, seconds)
    ways = [way for form in FORMS for way in _ways(form, usual)]
    if not effort.quick:
        slow = measured(SLOW_CHANNELS, max(3, passes // 4), (), 0.0)
        ways += [way for form in FORMS for way in _without_gate(form, slow)]
    reads, live = stored_objects.play_all(effort), stored_objects.read_live(effort)
    gains = (_gain(clients, usual.rates[clients]) for clients in CLIENTS)
    return ExperimentReport(
        (*(finding for finding, _ in ways), *gains, stored_objects.finding(reads), stored_objects.live_finding(live)),
        (_table(row for _, row in ways), stored_objects.table(reads)),
        (_plot(usual.rates),),
    )


def measured(channels: Sequence[int], passes: int, batches: Sequence[int], seconds: float) -> Measured:
    """Both ways on a server with classifiers of some `channels`, and images a second in requests of some `batches`."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        below = write_repository(folder, channels)
        with live_server(folder, {"partitions": min(2, len(available_cores()))}) as url:
            found = {
                form: measure(url, folder / "images.npy", passes, below, as_json) for form, as_json in FORMS.items()
            }
            ran = {model: computed(url, model) for model in ("prep", "first", "second")}
            rates = {
                clients: {batch: images_per_s(url, folder, clients, batch, seconds) for batch in batches}
                for clients in CLIENTS
            }
    prep, first, second = (each.seconds / each.requests * 1000 for each in ran.values())
    # The members of an ensemble run side by side.
    alone_ms = {ENSEMBLE: prep + max(first, second), CASCADE: prep + first + second * ESCALATED / IMAGES}
    return Measured(found, first, alone_ms, rates)


def _ways(form: str, times: Measured, models: str = "") -> Iterable[tuple[ExperimentFinding, str]]:
    """The finding and the row of the table of each pipeline: both ways with tensors in one form, of some models."""
    passes = times.found[form]
    for name, (clipper, cloudburst) in PUBLISHED.items():
        whole = [fmean(each.whole[name]) for each in passes]
        chained = [fmean(each.chained[name]) for each in passes]
        ratios = np.array(whole) / np.array(chained)
        ours, bound, interval = float(np.median(ratios)), cloudburst / clipper, ratio_interval(ratios, seed=0)
        asked = passes[0].requests[name] / IMAGES
        saved_ms = (median(chained) - median(whole)) / (asked - 1)
        least_ms = times.alone_ms[name]
        why = (
            f"a request that is saved takes {saved_ms:.1f} ms, of {median(chained):.1f} ms for all of an image; none "
            f"takes less than its models alone: {least_ms:.1f} ms, {least_ms / median(chained):.3f} of that"
        )
        quantity = f"{models}mean latency of the {name} as one request, by that of one for each model, {form}"
        gate = f"at most {bound:.3f}"
        finding = gated(quantity, f"{ours:.3f}", published=f"{bound:.3f}", gate=gate, is_met=ours <= bound, why=why)
        took = f"{asked:.2f} | {median(chained):.2f} ms | {median(whole):.2f} ms | {least_ms:.2f} ms"
        spread = f"{ours:.3f} | {interval.low:.3f} to {interval.high:.3f}"
        yield finding, f"| {name} | {form} | {times.classifier_ms:.1f} ms | {took} | {spread} |"


def _without_gate(form: str, times: Measured) -> Iterable[tuple[ExperimentFinding, str]]:
    for finding, row in _ways(form, times, f"with classifiers of {times.classifier_ms:.0f} ms: "):
        yield structs.replace(finding, gate="", verdict=GateVerdict.SHOWN, why=""), row


def _gain(clients: int, rates: Mapping[int, float]) -> ExperimentFinding:
    return ExperimentFinding(
        f"images a second in requests of {BATCHES[-1]}, by those in requests of one, clients: {clients}",
        f"{rates[BATCHES[-1]] / rates[1]:.1f} ({rates[BATCHES[-1]]:.0f} by {rates[1]:.0f})",
        "10 (a GPU by a CPU, at larger batches)",
    )


def _table(rows: Iterable[str]) -> str:
    heads = (
        "pipeline",
        "tensors",
        "a classifier",
        "requests for an image",
        "one for each model",
        "one request",
        "models alone",
        "ratio",
        "95 % interval",
    )
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows]) + "\n"


def _plot(rates: Mapping[int, Mapping[int, float]]) -> Plot:
    return Plot(
        "throughput",
        "Images classified a second by the size of requests",
        "images of a request",
        "images a second",
        tuple(
            (f"clients: {clients}", tuple((float(batch), rate) for batch, rate in each.items()))
            for clients, each in rates.items()
        ),
        log_x=True,
        beside="Figure 3.3",
    )


EXPERIMENT = PaperExperiment(
    "pipelines",
    "one request for a whole pipeline takes less time than a request for each model",
    "A. Ramkumar, Making the Most of Serverless Accelerators, EECS-2022-88, chapter 3, Table 3.1 and Figure 3.3",
    given="the shapes of both pipelines, a client that calls each model of Clipper in turn, a single node without a "
    "GPU, and the ratios of the mean latencies. From the authors' public pipelines (Cloudflow): images of 224 x 224 x "
    "3 bytes, prepared for both pipelines, and two members. From Clipper: a front end that takes JSON",
    assumed="classifiers of 3 ms each, as SqueezeNet takes, and an image that is prepared by a stage of its own; the "
    "verdicts depend on both, since the longer models take, the less a request weighs (the slower classifiers show "
    "that, without a gate); a third of the images escalated; the same server, "
    "partitions and client for both ways, in turns image by image, and a client that waits for each answer on one "
    "connection. Tensors in binary have the same gates as those in JSON. Measured, so each run has figures of its own. "
    "Stored objects are models, in virtual time: links of 1 Gbit/s, reads of 5 ms, and 60 % load",
    run=run,
    measures_machine=True,
)
