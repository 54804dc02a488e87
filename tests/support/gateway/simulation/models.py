"""The models of the simulated workers: each row of an answer shows which request, row and models it comes from."""

from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt

from sluice.models.pipelines.pipeline import REQUEST, Combiner, Pipeline, Stage
from tests.support.models.timed_models import save_timed

Rows = npt.NDArray[np.float32]

PIPELINES = {
    "cascade": """
slo_ms: 400
stages:
  first: {model: quick, inputs: {x: request.x}}
  second: {model: slow, inputs: {x: request.x}, when: {stage: first, output: y, below: 0.5}}
outputs:
  y: {from: [second.y, first.y]}
""",
    "chain": """
stages:
  first: {model: quick, inputs: {x: request.x}}
  second: {model: slow, inputs: {x: first.y}}
outputs:
  y: {from: [second.y]}
""",
    "mean": """
late: evict
slo_ms: 300
stages:
  left: {model: quick, inputs: {x: request.x}}
  right: {model: slow, inputs: {x: request.x}}
  both: {combine: mean, of: [left.y, right.y]}
outputs:
  y: {from: [both.y]}
""",
}
NAMES = ("quick", "slow", *PIPELINES)
"""All names that clients may ask for."""


def save_models(repository: Path) -> None:
    """Write the models and pipelines."""
    save_timed(repository, "quick", {1: 2, 8: 6}, "response_cache { enable: true }", max_batch_size=8)
    save_timed(repository, "slow", {1: 10, 4: 25}, max_batch_size=4)
    for name, text in PIPELINES.items():
        (repository / name).mkdir()
        (repository / name / "pipeline.yaml").write_text(text)


def request_rows(request: int, rows: int, width: int) -> Rows:
    """The input of a request: each row has the request, the row, and a pattern of both."""
    x = np.empty((rows, width), np.float32)
    for row in range(rows):
        x[row] = np.arange(width) % 13 + 16 * request + row
        x[row, :2] = request, row
    return x


def run_model(key: str, x: Rows) -> Rows:
    """The output of a model, which is another one for each revision."""
    number = crc32(key.encode())
    return x * np.float32(1 + number % 3) + np.float32(1 + number % 7)


def row_confidences(x: Rows) -> list[float]:
    """The confidence of a model in each row, by its input."""
    return [float((7 * int(first) + 3 * int(second)) % 10) / 10 for first, second in x[:, :2]]


def expected_output(pipeline: Pipeline, x: Rows) -> Rows:
    """The answer of a pipeline without variants."""
    ran: dict[str, dict[int, tuple[Rows, float]]] = {}
    for stage in pipeline.stages:
        ran[stage.name] = _run_stage(stage, x, ran)
    (sources,) = pipeline.sources.values()
    return np.stack(
        [next(ran[each.stage][row][0] for each in sources if row in ran[each.stage]) for row in range(len(x))]
    )


def _run_stage(stage: Stage, x: Rows, ran: dict[str, dict[int, tuple[Rows, float]]]) -> dict[int, tuple[Rows, float]]:
    """The output and the confidence of a stage for each row that it runs for."""
    results: dict[int, tuple[Rows, float]] = {}
    for row in range(len(x)):
        if stage.when is not None and not ran[stage.when.stage].get(row, (x, 1.0))[1] < stage.when.below:
            continue
        sources = [source.stage for source in stage.inputs.values()]
        if any(source != REQUEST and row not in ran[source] for source in sources):
            continue
        given = [x[row] if source == REQUEST else ran[source][row][0] for source in sources]
        if stage.model is not None:
            (each,) = given
            results[row] = run_model(stage.model, each), row_confidences(each[None])[0]
        else:
            assert stage.combine is Combiner.MEAN
            results[row] = np.stack(given).mean(axis=0, dtype=np.float32), 1.0
    return results
