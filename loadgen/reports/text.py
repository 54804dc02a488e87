"""Reports of runs and searches as text."""

from collections.abc import Iterator

from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.records.statistics import Distribution, QueryStatistics
from sluice.loadgen.reports.words import NO_INTERVALS
from sluice.loadgen.run.find_max import MaxRate, Probe
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.traffic.arrivals import ArrivalProcess
from sluice.models.text_table import table_lines

_QUANTILES = ("ms", "mean", "p50", "p90", "p95", "p97", "p99", "p99.9", "max")


def run_text(result: RunResult) -> str:
    """The report of a run as lines of text."""
    return "\n".join(_run_lines(result)) + "\n"


def probe_text(probe: Probe) -> str:
    """The line of one probe of `find-max`."""
    latency = probe.result.metrics.latency_ms
    p99 = "no answers" if latency is None else f"p99 {latency.p99:.3f} ms"
    match probe.result.verdict:
        case Verdict.MET:
            verdict = "pass"
        case Verdict.NOT_CONFIRMED:
            verdict = f"not confirmed by early stopping: needs {probe.result.metrics.queries_to_confirm} queries"
        case Verdict.MISSED:
            waited = probe.result.metrics.waited
            verdict = f"missed; {waited} queries waited for a connection" if waited else "missed"
        case Verdict.INVALID:
            verdict = "; ".join(probe.result.invalid)
    attainment = probe.result.metrics.attainment * 100
    return f"{probe.rate:12.1f}/s  met by {attainment:7.3f} %  {p99:>18}  seed {probe.result.config.seed}  {verdict}\n"


def max_rate_text(found: MaxRate) -> str:
    """The end of the report of `find-max`: notes on the figures, and the result."""
    notes = "".join(f"Note: {note}\n" for note in (found.probes[0].result.notes if found.probes else ()))
    return f"{notes}Result: {_max_rate(found)}\n"


def _max_rate(found: MaxRate) -> str:
    if found.rate is None:
        text = f"no rate met the objective in {len(found.probes)} probes"
        if not found.too_short:
            return text
        last = found.probes[-1]
        return (
            f"{text}; at {last.rate:.1f}/s and below runs have too few queries to confirm it; "
            "try a longer --duration or a higher --start"
        )
    if found.failed_rate is None:
        limit = ", no rate failed: the real maximum is higher"
    elif found.client_limited:
        limit = f"; {found.failed_rate:.1f}/s exceeded the client's capacity, the real maximum may be higher"
    else:
        limit = f"; {found.failed_rate:.1f}/s failed"
    return f"{found.rate:.1f}/s within the objective{limit} ({len(found.probes)} probes)"


def _run_lines(result: RunResult) -> Iterator[str]:
    config, metrics = result.config, result.metrics
    yield f"Server scenario: {config.model} at {config.target}" + (" (SIMULATED)" if result.simulated else "")
    yield f"  seed {config.seed}, schedule {result.schedule_digest[:16]}, {config.warmup_s:g} s of warm-up excluded"
    if config.arrivals.process is not ArrivalProcess.POISSON:
        yield f"  arrivals   {config.arrivals.describe()}"
    yield (
        f"  queries    {metrics.queries}: {metrics.ok} ok, {metrics.shed} shed, {metrics.error} error, "
        f"{metrics.timeout} timeout, {metrics.dropped} dropped"
        + (f", {metrics.cancelled} cancelled" if metrics.cancelled else "")
    )
    yield (
        f"  rate       {metrics.offered_per_s:.1f}/s offered, {metrics.completed_per_s:.1f}/s completed, "
        f"{metrics.goodput_per_s:.1f}/s good"
    )
    yield _objective_line(metrics, config.slo_ms, config.percentile)
    distributions = [
        _distribution("from due", metrics.latency_ms),
        _distribution("from sent", metrics.service_ms),
        _distribution("waited", metrics.waiting_ms),
        _distribution("client lag", metrics.lateness_ms),
    ]
    yield from (f"  {line}" for line in table_lines([_QUANTILES, *distributions], left=1))
    if len(result.record):
        yield _interval_line(result)
    if metrics.waited:
        yield f"  waited     {metrics.waited} queries for one of {config.connections} connections, part of 'from due'"
    if result.client_cpu_us_per_query is not None:
        yield f"  client     {result.client_cpu_us_per_query:.1f} us of CPU a query"
    if result.accuracy is not None:
        yield f"  accuracy   {result.accuracy:.4f} of {result.answered_rows} answered rows"
    yield from _server_lines(result.server)
    yield from _stage_lines(result)
    if (cost := result.figures.cost) is not None:
        yield f"  cost       {cost.per_1000_good:.4g} for 1000 good answers ({cost.source})"
    for reason, count in result.record.reasons.items():
        yield f"  failures   {count} x {reason}"
    for note in result.notes:
        yield f"  note       {note}"
    match result.verdict:
        case Verdict.INVALID:
            yield f"Result: INVALID: {'; '.join(result.invalid)}"
        case Verdict.MET:
            yield "Result: VALID, objective met"
        case Verdict.MISSED:
            yield "Result: VALID, objective MISSED"
        case Verdict.NOT_CONFIRMED:
            yield (
                f"Result: VALID, objective NOT CONFIRMED: {metrics.misses} misses among {metrics.judged} queries; "
                f"early stopping needs {metrics.queries_to_confirm} for that number of misses"
            )


def _objective_line(metrics: QueryStatistics, slo_ms: float | None, percentile: float) -> str:
    objective = "an answer" if slo_ms is None else f"{slo_ms:g} ms"
    confirmation = "confirmed" if metrics.confirmed else f"not confirmed (needs {metrics.queries_to_confirm} queries)"
    met = metrics.attainment * 100
    return f"  objective  {objective} for {percentile:g} %: met by {met:.3f} %, {confirmation} by early stopping"


def _distribution(title: str, d: Distribution | None) -> tuple[str, ...]:
    if d is None:
        return title, "-", *("" for _ in _QUANTILES[2:])
    values = (d.mean, d.p50, d.p90, d.p95, d.p97, d.p99, d.p99_9, d.max)
    return title, *(f"{value:.3f}" for value in values)


def _server_lines(server: ServerReport | None) -> Iterator[str]:
    if server is None:
        return
    if server.batches:
        yield f"  batches    {sum(batch.batches for batch in server.batches)}, mean {server.mean_batch:.2f} rows"
    for batch in server.batches:
        yield f"  batches    {batch.model} on {batch.partition}: {batch.batches}, mean {batch.mean_rows:.2f} rows"
    for stage in server.stages:
        yield f"  stage      {stage.pipeline} {stage.stage}: {stage.rows} rows ({stage.share * 100:.1f} %)"
    for model in server.models:
        batches = f", batches of {model.mean_batch:.2f} rows ({model.met_batch:.2f} as rows met)"
        yield (
            f"  model      {model.model}: {model.requests} requests{'' if model.is_pipeline else batches}; "
            f"ms: {model.queue_ms:.3f} queue, {model.input_ms:.3f} input, {model.compute_ms:.3f} compute, "
            f"{model.output_ms:.3f} output"
        )


def _stage_lines(result: RunResult) -> Iterator[str]:
    rows = [
        (f"{stage.stage} on {stage.partition}", *(f"{value:.3f}" for value in stage.times_ms))
        for stage in result.figures.stages
    ]
    if rows:
        header = ("ms of a sample", "queue", "batch wait", "hand-off", "compute", "return")
        yield from (f"  {line}" for line in table_lines([header, *rows], left=1))


def _interval_line(result: RunResult) -> str:
    intervals = result.figures.intervals
    if intervals is None:
        return f"  intervals  {NO_INTERVALS}"
    goodput, attained = intervals.goodput_per_s, intervals.attainment
    said = [f"met by {attained.low * 100:.3f} to {attained.high * 100:.3f} %"]
    if goodput is not None:
        said.insert(0, f"{goodput.low:.1f} to {goodput.high:.1f}/s good")
    for name, interval in (("p50", intervals.p50_ms), ("p99", intervals.p99_ms)):
        if interval is not None:
            said.append(f"{name} {interval.low:.3f} to {interval.high:.3f} ms")
    return f"  95 %       {', '.join(said)}"
