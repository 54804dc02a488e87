"""Reports of runs as text."""

from collections.abc import Iterator

from sluice.loadgen.records.early_stopping import confirmed, queries_for_share, queries_needed
from sluice.loadgen.records.figures import GroupBy, GroupStatistics
from sluice.loadgen.records.server_metrics import ServerReport
from sluice.loadgen.records.statistics import Distribution
from sluice.loadgen.records.validity import seconds_for
from sluice.loadgen.reports.words import NO_INTERVALS
from sluice.loadgen.run.result import RunResult, Verdict
from sluice.loadgen.scenarios.base import Figure
from sluice.loadgen.scenarios.table import SCENARIOS
from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.models.text_table import table_lines

_QUANTILES = ("ms", "mean", "p50", "p90", "p95", "p97", "p99", "p99.9", "max")


def run_text(result: RunResult) -> str:
    """The report of a run as lines of text."""
    return "\n".join(_run_lines(result)) + "\n"


def _run_lines(result: RunResult) -> Iterator[str]:
    config, metrics, score = result.config, result.metrics, result.score
    yield f"{config.scenario.capitalize()} scenario: {config.model} at {config.target}" + (
        " (SIMULATED)" if result.simulated else ""
    )
    yield f"  seed {config.seed}, schedule {result.schedule_digest[:16]}, {config.warmup_s:g} s of warm-up excluded"
    if config.arrivals != Arrivals():
        yield f"  arrivals   {config.arrivals.describe()}"
    yield (
        f"  queries    {metrics.queries}: {metrics.ok} ok, {metrics.shed} shed, {metrics.error} error, "
        f"{metrics.timeout} timeout, {metrics.dropped} dropped"
        + (f", {metrics.cancelled} cancelled" if metrics.cancelled else "")
    )
    yield (
        f"  rate       {_per_s(metrics.offered_per_s)} offered, {_per_s(metrics.completed_per_s)} completed, "
        f"{_per_s(metrics.goodput_per_s)} good"
    )
    yield f"  score      {', '.join(map(_figure, score.figures))}"
    yield _objective_line(result)
    distributions = [
        _distribution("from due", metrics.latency_ms),
        _distribution("from sent", metrics.service_ms),
        _distribution("waited", metrics.waiting_ms),
    ]
    if SCENARIOS[config.scenario].is_paced:
        distributions.append(_distribution("client lag", metrics.lateness_ms))
    yield from (f"  {line}" for line in table_lines([_QUANTILES, *distributions], left=1))
    yield from (_stream_line(group) for group in result.figures.groups if group.by is GroupBy.STREAM)
    if len(result.record):
        yield _interval_line(result)
    yield from _client_lines(result)
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
                f"Result: VALID, objective NOT CONFIRMED: {score.misses} misses among {score.queries} queries; "
                f"early stopping needs {queries_needed(score.misses, config.percentile)} for that number of misses"
                f"{_longer(result)}"
            )


def _client_lines(result: RunResult) -> Iterator[str]:
    waited = result.metrics.waited
    if waited:
        config = result.config
        # Calls of gRPC share connections, of which --connections is not the number.
        place = "room on" if config.target.startswith("grpc") else f"one of {config.connections}"
        yield f"  waited     {waited} queries for {place} connections, part of 'from due'"
    if result.client_cpu_us_per_query is not None:
        yield f"  client     {_client(result)}"
    if result.accuracy is not None:
        yield f"  accuracy   {result.accuracy:.4f} of {result.answered_rows} answered rows"


def _client(result: RunResult) -> str:
    """The load of the client, and how late it was without load."""
    text = f"{result.client_cpu_us_per_query:.1f} us of CPU a query"
    if result.client_cpu_share is not None:
        text += f", {result.client_cpu_share * 100:.0f} % of a core"
    if result.baseline_lateness_ms is not None:
        text += f"; {result.baseline_lateness_ms:.3f} ms late without load (p99)"
    return text


def _longer(result: RunResult) -> str:
    """The duration that would confirm the objective if as large a share of the queries missed it."""
    metrics, config = result.metrics, result.config
    queries = queries_for_share(1 - result.score.attainment, config.percentile)
    seconds = None if queries is None else seconds_for(queries, result.score.queries, metrics, config.warmup_s)
    if seconds is None:
        return ""
    return f"; with this share of misses it takes about {queries}: try --duration {seconds}"


def _per_s(rate: float) -> str:
    """A rate with one decimal, or with three where it is below one a second."""
    return f"{rate:.3f}/s" if 0 < rate < 1 else f"{rate:.1f}/s"


def _figure(figure: Figure) -> str:
    if figure.value is None:
        return f"{figure.name} unknown"
    return f"{figure.name} {figure.value:.3f}{figure.unit if figure.unit.startswith('/') else f' {figure.unit}'}"


def _objective_line(result: RunResult) -> str:
    score, slo_ms, percentile = result.score, result.config.slo_ms, result.config.percentile
    own = "its own objective" if result.record.has_objectives else "an answer"
    objective = own if slo_ms is None else f"{slo_ms:g} ms"
    text = f"  objective  {objective} for {percentile:g} %: met by {score.attainment * 100:.3f} %"
    if not score.is_sample:
        return text
    if confirmed(score.queries, score.misses, percentile):
        return f"{text}, confirmed by early stopping"
    if result.verdict is Verdict.MISSED:
        return text
    needed = queries_needed(score.misses, percentile)
    return f"{text}, not confirmed (needs {needed} queries) by early stopping"


def _stream_line(group: GroupStatistics) -> str:
    metrics = group.metrics
    latency = metrics.latency_ms
    text = "no answers" if latency is None else f"p50 {latency.p50:.3f} ms, p99 {latency.p99:.3f} ms"
    share = f"{metrics.attainment * 100:.3f} %"
    return (
        f"  stream     {group.name}: {metrics.queries} queries, {_per_s(metrics.goodput_per_s)} good ({share}); {text}"
    )


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
    rows = [(stage.title, *(f"{value:.3f}" for value in stage.times_ms)) for stage in result.figures.stages]
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
    return f"  intervals  95 %: {', '.join(said)}"
