"""MLPerf's compliance tests: a system has to do under a test what it does otherwise.

The tests, their limits and their settings are those of mlcommons/inference (`compliance/`): TEST01 logs a share of the
answers of a performance run and compares them with those of the accuracy run; TEST04 sends one sample over and over,
which a system that remembers answers would be faster with; TEST05 takes other random numbers than the official ones.
"""

import enum
from pathlib import Path

import msgspec
import numpy as np

from sluice.loadgen.mlperf.accuracy_log import read_accuracy_log
from sluice.loadgen.mlperf.logged_run import MULTI_STREAM, SERVER, SINGLE_STREAM
from sluice.loadgen.mlperf.logs import ACCURACY
from sluice.loadgen.mlperf.scored_log import ScoredLog
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.traffic.mlperf_schedule import MlperfSeeds, SampleChoice
from sluice.models.errors import ConfigError

TEST05_SEEDS = MlperfSeeds(7975553102935885558, 11403566307062068064, 15816800565822761601)
"""The seeds of TEST05 in the configuration that LoadGen 6.0 brings along."""
TEST01_SEED = 720381539243781796
TEST04_PLACE = 3
"""The place in the loaded set of the one sample of TEST04."""

_SHORT_NS = {SINGLE_STREAM: 200_000, MULTI_STREAM: 1_600_000}
"""Latencies up to which a closed loop is disturbed so easily by its machine that 20 % are allowed."""
_DTYPES = {"byte": np.int8, "float32": np.float32, "int32": np.int32, "int64": np.int64}
DTYPES = tuple(_DTYPES)


class ComplianceTest(enum.StrEnum):
    """Name of a compliance test."""

    TEST01 = "TEST01"
    TEST04 = "TEST04"
    TEST05 = "TEST05"


class Compliance(msgspec.Struct, frozen=True):
    """The verdict of a test: passed or not, or None where a run is invalid, and the sentence that says why."""

    test: ComplianceTest
    passed: bool | None
    sentence: str
    scenario: str
    reference: float
    score: float
    compared: int = 0
    different: int = 0


def changed_config(test: ComplianceTest, config: RunConfig, reference: ScoredLog, logged_answers: int) -> RunConfig:
    """The configuration of the test's run; TEST01 logs about `logged_answers` answers."""
    rules = config.mlperf
    match test:
        case ComplianceTest.TEST01:
            share = min(1.0, logged_answers / reference.samples)
            return msgspec.structs.replace(config, kept_outputs=KeptOutputs(share, TEST01_SEED))
        case ComplianceTest.TEST04:
            rules = msgspec.structs.replace(rules, choice=SampleChoice.SAME, place=TEST04_PLACE)
        case ComplianceTest.TEST05:
            rules = msgspec.structs.replace(rules, seeds=TEST05_SEEDS)
    return msgspec.structs.replace(config, mlperf=rules)


def check_performance(test: ComplianceTest, reference: ScoredLog, tested: ScoredLog) -> Compliance:
    """Compare the score of a test's run with that of the reference run, by the limits of the test.

    Raises `ConfigError` for runs of different scenarios, or with different limits on the latency.
    """
    if tested.scenario != reference.scenario:
        raise ConfigError(f"{test}: expected runs of one scenario, got {reference.scenario} and {tested.scenario}")
    if reference.scenario == SERVER and tested.target_latency_ns != reference.target_latency_ns:
        raise ConfigError(
            f"{test}: expected runs with one latency objective, got {reference.target_latency_ns} ns and "
            f"{tested.target_latency_ns} ns"
        )
    for name, log in (("reference", reference), ("test", tested)):
        if log.invalid_reason:
            return _verdict(test, None, f"the {name} run is INVALID: {log.invalid_reason}", reference, tested)
    least, most = _bounds(test, reference)
    ratio = tested.per_s / reference.per_s
    measured = f"{tested.text} with the test, {reference.text} without"
    if ratio > most:
        sentence = f"{measured}: {(ratio - 1) * 100:.1f} % faster, {(most - 1) * 100:.0f} % are allowed"
        return _verdict(test, False, sentence, reference, tested)
    if ratio < least:
        sentence = f"{measured}: {(1 / ratio - 1) * 100:.1f} % slower, {(1 / least - 1) * 100:.0f} % are allowed"
        return _verdict(test, False, sentence, reference, tested)
    return _verdict(test, True, measured, reference, tested)


def check_answers(
    performance: Compliance, accuracy: Path, tested: Path, dtype: str = "byte", tolerance: float = 0.0
) -> Compliance:
    """Compare the answers that TEST01 logged with those of the accuracy run, in the folders of their logs.

    All elements count, with a `tolerance` (relative or absolute) for floating-point numbers, where the published script
    compares the first element only. Raises `ConfigError` for files that cannot be read.
    """
    if performance.passed is None:
        return performance
    expected = {answer.qsl_idx: answer.data for answer in read_accuracy_log(accuracy / ACCURACY)}
    answers = [answer for answer in read_accuracy_log(tested / ACCURACY) if answer.qsl_idx in expected]
    different = sum(not _equal(answer.data, expected[answer.qsl_idx], dtype, tolerance) for answer in answers)
    if not answers:
        compared = "no answer was logged of a sample that the accuracy run has, so nothing was compared"
    elif different:
        compared = f"{different} of {len(answers)} answers differ from those of the accuracy run"
    else:
        compared = f"{len(answers)} answers are those of the accuracy run"
    return msgspec.structs.replace(
        performance,
        passed=performance.passed and bool(answers) and not different,
        sentence=f"{compared}; {performance.sentence}",
        compared=len(answers),
        different=different,
    )


def _bounds(test: ComplianceTest, reference: ScoredLog) -> tuple[float, float]:
    """The least and the most that the rate of the test's run may be, in rates of the reference run."""
    unlimited = float("inf")
    if test is ComplianceTest.TEST04:
        return 0.0, 1.2 if reference.is_latency else 1.1
    short = reference.score <= _SHORT_NS.get(reference.scenario, -1)
    allowed = 0.2 if short else 0.1 if test is ComplianceTest.TEST01 else 0.05
    # Closed loops are judged by their latency, which is the inverse.
    slowest = 1 / (1 + allowed) if reference.is_latency else 1 - allowed
    if test is ComplianceTest.TEST05:
        return slowest, unlimited
    return slowest, 1 / (1 - allowed) if reference.is_latency else 1 + allowed


def _verdict(
    test: ComplianceTest, passed: bool | None, sentence: str, reference: ScoredLog, tested: ScoredLog
) -> Compliance:
    return Compliance(test, passed, sentence, reference.scenario, reference.score, tested.score)


def _equal(one: str, other: str, dtype: str, tolerance: float) -> bool:
    if one == other:
        return True
    if not tolerance:
        return False
    try:
        first, second = (np.frombuffer(bytes.fromhex(data), _DTYPES[dtype]) for data in (one, other))
    except ValueError as error:
        raise ConfigError(f"{ACCURACY}: expected data of {dtype}: {error}") from error
    return first.shape == second.shape and bool(np.allclose(first, second, tolerance, tolerance, equal_nan=True))
