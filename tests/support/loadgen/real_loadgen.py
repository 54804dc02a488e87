"""MLPerf's own LoadGen with a system under test that answers at once, in a process of its own.

An answer is the number of the sample, in eight bytes.
"""

import array
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60
_BEGIN = re.compile(r'"name":"Sample","cat":"default","ph":"b","pid":\d+,"id":(\d+),"ts":(\d+)\.(\d{3})')


@dataclass(frozen=True)
class Observed:
    """The loaded sets, the samples of each query, and the due time of each sample in ns from that of the first.

    `generated` has the number of queries that LoadGen generated for each set, and the due time of the next one.
    """

    sets: list[list[int]]
    queries: list[list[int]]
    due_ns: list[int]
    generated: list[list[int]]


def observe(scenario: str, mode: str, samples: int, set_size: int, **settings: object) -> Observed:
    """Run LoadGen with the official seeds; `settings` are attributes of its `TestSettings`."""
    with tempfile.TemporaryDirectory() as folder:
        return observe_into(Path(folder), scenario, mode, samples, set_size, **settings)


def observe_into(folder: Path, scenario: str, mode: str, samples: int, set_size: int, **settings: object) -> Observed:
    """Run LoadGen as `observe` does, with its logs in a folder that exists."""
    arguments = json.dumps([scenario, mode, samples, set_size, settings, str(folder)])
    command = [sys.executable, "-m", "tests.support.loadgen.real_loadgen", arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert finished.returncode == 0, finished.stderr
    return Observed(**json.loads(finished.stdout))


def _main(scenario: str, mode: str, samples: int, set_size: int, settings: dict[str, Any], folder: str) -> None:
    import mlperf_loadgen

    test = mlperf_loadgen.TestSettings()
    test.scenario = getattr(mlperf_loadgen.TestScenario, scenario)
    test.mode = getattr(mlperf_loadgen.TestMode, mode)
    test.qsl_rng_seed = 2085463073848966840
    test.sample_index_rng_seed = 2747215439041700203
    test.schedule_rng_seed = 16159082839903944936
    for name, value in settings.items():
        setattr(test, name, value)
    sets: list[list[int]] = []
    queries: list[list[int]] = []

    def issue(query: list[Any]) -> None:
        queries.append([sample.index for sample in query])
        numbers = array.array("q", [sample.index for sample in query])
        address = numbers.buffer_info()[0]
        mlperf_loadgen.QuerySamplesComplete(
            [mlperf_loadgen.QuerySampleResponse(each.id, address + 8 * i, 8) for i, each in enumerate(query)]
        )

    target = mlperf_loadgen.ConstructSUT(issue, lambda: None)
    library = mlperf_loadgen.ConstructQSL(samples, set_size, lambda loaded: sets.append(list(loaded)), lambda _: None)
    log = mlperf_loadgen.LogSettings()
    log.log_output.outdir = folder
    log.log_output.copy_summary_to_stdout = False
    mlperf_loadgen.StartTestWithLogSettings(target, library, test, log, "")
    begins = _BEGIN.findall(Path(folder, "mlperf_log_trace.json").read_text(encoding="ascii"))
    detail = Path(folder, "mlperf_log_detail.txt").read_text(encoding="utf-8")
    times = [int(us + ns) for _, us, ns in sorted(begins, key=lambda each: int(each[0]))]
    counts, ends = (
        [int(value) for value in re.findall(rf'"generated_query_{name}", "value": (\d+)', detail)]
        for name in ("count", "duration")
    )
    print(
        json.dumps(
            {
                "sets": sets,
                "queries": queries,
                "due_ns": [time - times[0] for time in times],
                "generated": list(zip(counts, ends, strict=True)),
            }
        ),
        flush=True,
    )
    os._exit(0)  # the library may crash where Python ends as usual


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
