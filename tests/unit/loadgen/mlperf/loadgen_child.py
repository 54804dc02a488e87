"""A child process that runs MLPerf's LoadGen against a target that answers at once.

Arguments: scenario, mode, folder, and a JSON object of settings to set.
"""

import array
import json
import sys
from typing import Any

import mlperf_loadgen as lg

SAMPLES = 128


def main() -> None:
    scenario, mode, folder, given = sys.argv[1:]
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = getattr(lg.TestMode, mode)
    for name, value in json.loads(given).items():
        assert hasattr(settings, name)
        setattr(settings, name, value)

    def issue(queries: list[Any]) -> None:
        numbers = array.array("q", [query.index for query in queries])
        address = numbers.buffer_info()[0]
        lg.QuerySamplesComplete(
            [lg.QuerySampleResponse(query.id, address + 8 * i, 8) for i, query in enumerate(queries)]
        )

    target = lg.ConstructSUT(issue, lambda: None)
    samples = lg.ConstructQSL(SAMPLES, SAMPLES, lambda loaded: None, lambda loaded: None)
    output = lg.LogOutputSettings()
    output.outdir = folder
    log = lg.LogSettings()
    log.log_output = output
    log.enable_trace = True
    lg.StartTestWithLogSettings(target, samples, settings, log)


main()
