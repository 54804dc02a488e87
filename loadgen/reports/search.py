"""Reports of `find-max`, as text and as JSON, from which a search can go on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluice.loadgen.records.statistics import QueryStatistics
from sluice.loadgen.reports.document import document, run_json, without_secrets
from sluice.loadgen.run.find_max import MaxRate, Probe, ProbePlan, SearchSettings, resolution
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.scenarios.config import RunConfig
from sluice.models.errors import ConfigError

_OF_A_PROBE = ("rate", "seed", "duration_s", "decide_from_s")
"""The settings of a run that differ between the probes of one search."""
_COARSE = 2
"""Runs whose resolution is this many times the precision are too short for it."""


def probe_text(probe: Probe) -> str:
    """The line of one probe."""
    latency, metrics = probe.metrics.latency_ms, probe.metrics
    p99 = "no answers" if latency is None else f"p99 {latency.p99:.3f} ms"
    match probe.verdict:
        case Verdict.MET:
            verdict = "pass"
        case Verdict.NOT_CONFIRMED:
            verdict = f"not confirmed by early stopping: needs {metrics.queries_to_confirm} queries"
        case Verdict.MISSED:
            waited = metrics.waited
            verdict = f"missed; {waited} queries waited for a connection" if waited else "missed"
        case Verdict.INVALID:
            verdict = "; ".join(probe.reasons)
    kind = "confirm" if probe.confirms else "search "
    return (
        f"{probe.rate:12.1f}/s  {kind}  met by {metrics.attainment * 100:7.3f} % of {metrics.queries:<7d} {p99:>16}  "
        f"seed {probe.seed}  {verdict}\n"
    )


def max_rate_text(found: MaxRate, precision: float) -> str:
    """The end of the report: notes on the figures, also where runs were too short for the precision; the result."""
    notes = "".join(f"Note: {note}\n" for note in (found.probes[0].notes if found.probes else ()))
    queries = found.confirming_queries
    if queries and (finest := resolution(queries)) > _COARSE * precision:
        notes += (
            f"Note: {queries} Poisson arrivals, as in a run that confirms the rate, tell rates apart that differ by "
            f"{finest * 100:.0f} %; a longer --duration has more\n"
        )
    return f"{notes}Result: {_max_rate(found)} ({len(found.probes)} probes)\n"


def _max_rate(found: MaxRate) -> str:
    if found.rate is None:
        if found.probes and found.probes[-1].interrupted:
            return "interrupted before a rate met the objective"
        if found.too_short:
            last = found.probes[-1]
            higher = "" if any(probe.verdict is Verdict.MISSED for probe in found.probes) else ", or a higher --start"
            return f"no rate met the objective; at {last.rate:.1f}/s {'; '.join(last.reasons)}{higher}"
        if found.failed_rate is not None and found.client_limited:
            reasons = "; ".join(found.probes[-1].reasons)
            return f"no rate met the objective; {found.failed_rate:.1f}/s exceeded the client's capacity: {reasons}"
        return "no rate met the objective"
    if found.failed_rate is None:
        limit = "no rate failed: the real maximum is higher"
    elif found.client_limited:
        limit = f"{found.failed_rate:.1f}/s exceeded the client's capacity, the real maximum may be higher"
    else:
        limit = f"{found.failed_rate:.1f}/s failed"
    if found.confirmed:
        return f"{found.rate:.1f}/s within the objective, confirmed on two more seeds; {limit}"
    if found.probes[-1].interrupted:
        return f"{found.rate:.1f}/s within the objective once, interrupted before it was confirmed; {limit}"
    return f"{found.rate:.1f}/s within the objective once, but not confirmed: try more --max-probes; {limit}"


def probe_json(result: RunResult, probe: Probe) -> bytes:
    """The report of a probe's run, and its part in the search, as a JSON object."""
    part = {key: getattr(probe, key) for key in ("confirms", "too_short", "client_limited", "too_busy", "interrupted")}
    return msgspec.json.encode(msgspec.json.decode(run_json(result)) | part)


def max_rate_json(found: MaxRate, settings: SearchSettings, probes: Sequence[bytes]) -> bytes:
    """The report of a search as a JSON object; `probes` are the JSON objects of the probes."""
    content: dict[str, Any] = {
        "kind": "find-max",
        "rate": found.rate,
        "failed_rate": found.failed_rate,
        "confirmed": found.confirmed,
        "client_limited": found.client_limited,
        "too_short": found.too_short,
        "settings": settings,
        "probes": [msgspec.Raw(probe) for probe in probes],
    }
    return document(content)


class _Validity(msgspec.Struct):
    reasons: list[str]


class _StoredProbe(msgspec.Struct):
    config: dict[str, Any]
    metrics: QueryStatistics
    verdict: Verdict
    validity: _Validity
    confirms: bool
    too_short: bool
    client_limited: bool
    too_busy: bool
    interrupted: bool
    notes: tuple[str, ...]


class _StoredSearch(msgspec.Struct):
    kind: str
    settings: SearchSettings
    probes: list[msgspec.Raw]


class StoredProbes:
    """The probes of a search that ended early, which give a search with the same settings the same answers.

    A search that may make more probes narrows its bracket further before it confirms; the stored probes from there on
    are then of no use to it.
    """

    def __init__(self, path: Path, settings: SearchSettings, config: RunConfig) -> None:
        """Read the report of `find-max --json`; raises `ConfigError` for one of another search."""
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_StoredSearch)
            probes = [(bytes(raw), msgspec.json.decode(raw, type=_StoredProbe)) for raw in stored.probes]
        except OSError as error:
            raise ConfigError(f"--resume {path}: cannot be read: {error.strerror or error}") from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"--resume {path}: expected the report of find-max --json: {error}") from error
        if stored.kind != "find-max":
            raise ConfigError(f"--resume {path}: expected the report of find-max --json, got one of {stored.kind!r}")
        now = _as_stored(without_secrets(config))
        for number, (_, probe) in enumerate(probes):
            expected = now | {key: probe.config.get(key) for key in _OF_A_PROBE} | {"seed": config.seed + number}
            _refuse_difference(path, probe.config, expected)
        # Some bounds follow from the run's settings, so these are compared first.
        _refuse_difference(path, _bounds(stored.settings), _bounds(settings))
        # What an interrupt has cut off says nothing, so it is run again.
        self._probes = [(raw, probe) for raw, probe in probes if not probe.interrupted]

    def get(self, plan: ProbePlan) -> tuple[Probe, bytes] | None:
        """The stored probe that a search asks for, and its JSON object; None where there is none."""
        if plan.number >= len(self._probes):
            return None
        raw, stored = self._probes[plan.number]
        if (stored.config["rate"], stored.confirms) != (plan.rate, plan.confirms):
            del self._probes[plan.number :]
            return None
        return Probe(
            rate=plan.rate,
            seed=stored.config["seed"],
            confirms=stored.confirms,
            verdict=stored.verdict,
            reasons=stored.validity.reasons,
            metrics=stored.metrics,
            too_short=stored.too_short,
            client_limited=stored.client_limited,
            too_busy=stored.too_busy,
            interrupted=stored.interrupted,
            notes=stored.notes,
        ), raw


def _bounds(settings: SearchSettings) -> Mapping[str, Any]:
    """The settings that decide what a search probes; with more probes it goes on, and with fewer it ends before."""
    bounds = _as_stored(settings)
    del bounds["max_probes"]
    return bounds


def _as_stored(settings: msgspec.Struct) -> dict[str, Any]:
    """Settings as they are read from a report."""
    return msgspec.json.decode(msgspec.json.encode(settings), type=dict[str, Any])


def _refuse_difference(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    keys = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if keys:
        differences = "; ".join(f"{key} was {before.get(key)!r}, and is {now.get(key)!r} now" for key in keys)
        raise ConfigError(f"--resume {path}: is of another search: {differences}")
