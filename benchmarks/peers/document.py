"""Writes docs/evidence/peers.md from the figures: medians over rounds, with intervals, wins and losses alike."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.peers.client import CROWD, PERCENTILE, PRIORITY
from benchmarks.peers.peer import PEERS, Peer
from benchmarks.peers.results import Results
from benchmarks.peers.workload import MODELS, SLO_MS, Model

RESAMPLES = 2000
FEWEST_ROUNDS = 3
"""Intervals of fewer rounds say nothing."""
OURS = "sluice"
PROTOCOLS = {"http": "HTTP", "grpc": "gRPC"}


class Median(NamedTuple):
    """A median over rounds, and its 95 % interval by a bootstrap over rounds."""

    value: float
    low: float
    high: float


class Measure(NamedTuple):
    """A figure of the tables: where it is in an entry, and whether more is better."""

    title: str
    keys: tuple[str | int, ...]
    more_is_better: bool
    text: Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else _whole(value)


HIGHEST = Measure("highest rate", ("highest", "rate"), True, _whole)
ALONE = (
    Measure("p50 of one client", ("alone", "p50_ms"), False, _ms),
    Measure("p99 of one client", ("alone", "p99_ms"), False, _ms),
)
CROWDED = Measure(f"rate of {CROWD} clients", ("crowded", "rate"), True, _whole)
CPU = Measure("processor time a request", ("crowded", "cpu_us"), False, _whole)


def at_rate(number: int) -> tuple[Measure, ...]:
    """The figures at the lower (0) or the higher (1) fixed rate."""
    return (
        Measure("p50", ("fixed", number, "p50_ms"), False, _ms),
        Measure("p99", ("fixed", number, "p99_ms"), False, _ms),
        Measure("in time", ("fixed", number, "in_time"), True, lambda share: f"{share:.1%}".replace("%", " %")),
    )


def median_of(values: Sequence[float]) -> Median | None:
    """The median of the rounds; None without any."""
    if not values:
        return None
    array = np.array(values)
    draws = np.random.default_rng(0).integers(len(array), size=(RESAMPLES, len(array)))
    low, high = np.percentile(np.median(array[draws], axis=1), [2.5, 97.5])
    return Median(float(np.median(array)), float(low), float(high))


def document(results: Results) -> str:
    """The whole page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield "# Beside other servers"
    yield ""
    yield "```sh"
    yield "make peers    # installs each server into an environment of its own, measures 90 minutes, writes this page"
    yield "```"
    yield ""
    yield from _method(results)
    yield from _servers(results)
    yield ""
    yield f"## The highest rate within {SLO_MS} ms"
    yield ""
    yield (
        f"Requests a second, of which {PERCENTILE} % are answered within {SLO_MS} ms from when they were due "
        "(`loadgen find-max`). A dash stands where no rate was confirmed." + _limited(results)
    )
    for protocol in PROTOCOLS:
        yield from _by_model(results, protocol, (HIGHEST,))
    yield ""
    yield "## One client"
    yield ""
    yield "Latency in ms, p50 and p99, of one client that waits for each answer."
    for protocol in PROTOCOLS:
        yield from _by_model(results, protocol, ALONE)
    yield ""
    yield f"## {CROWD} clients"
    yield ""
    yield f"Requests a second of {CROWD} clients that each wait for the answer: how much a core can do."
    for protocol in PROTOCOLS:
        yield from _by_model(results, protocol, (CROWDED,))
    yield ""
    yield "## At fixed rates"
    yield ""
    yield f"p50 and p99 in ms from when requests were due, and the share within {SLO_MS} ms; medians of rounds."
    for protocol in PROTOCOLS:
        yield from _fixed(results, protocol)
    yield ""
    yield "## Processor time and memory"
    yield ""
    yield "Processor time of all processes of the server, in µs a request, with those clients."
    for protocol in PROTOCOLS:
        yield from _by_model(results, protocol, (CPU,))
    yield ""
    yield from _whole_servers(results)
    yield from _losses(results)


def _method(results: Results) -> Iterator[str]:
    rounds = {entry["round"] for entry in results.entries if "failed" not in entry}
    loads = [entry["load"] for entry in results.entries]
    settings = results.settings
    wanted = settings["rounds"]
    count = (
        f"There were {wanted} rounds."
        if len(rounds) >= wanted
        else f"So far {len(rounds)} of {wanted} rounds has figures; the same command goes on from there."
        if len(rounds) == 1
        else f"So far {len(rounds)} of {wanted} rounds have figures; the same command goes on from there."
    )
    machine = f"The machine: {settings['machine']}."
    if loads:
        machine += f" Its load average was {min(loads):.1f} to {max(loads):.1f}, the run's own load included."
    first = any(entry.get("client_first") for entry in results.entries)
    yield (
        "All servers run the same ONNX files with ONNX Runtime on one thread. A server and all of its processes have "
        f"one core, and the client, `loadgen`, has the other"
        f"{f', where it goes before all else (real-time priority {PRIORITY})' if first else ''}. {machine}"
    )
    yield ""
    yield (
        f"{count} In each, the servers were started in turns, asked until the answers of all models were "
        "right (within 0.0001 of those of ONNX Runtime alone), measured and ended. Figures are medians of the rounds; "
        "brackets have the 95 % interval of a bootstrap over rounds, where there is more than one. "
        + ("This was a quick run, which shows little more than that all works." if settings["quick"] else "")
    ).rstrip()
    late = [
        fixed["client_late"]
        for entry in results.entries
        for protocols in entry.get("models", {}).values()
        for measured in protocols.values()
        for fixed in measured.get("fixed", ())
    ]
    if any(late):
        share = f"{np.mean(late):.0%}".replace("%", " %")
        yield ""
        yield (
            f"In {share} of the runs at fixed rates the client itself was late. The latencies of these runs are upper "
            "bounds."
        )
    yield ""
    yield "| model | | fixed rates |"
    yield "|---|---|---|"
    for model in MODELS:
        yield f"| `{model.name}` | {model.about} | {model.rates[0]}/s, {model.rates[1]}/s |"
    yield ""


def _limited(results: Results) -> str:
    """A sentence on the searches that the client ended, if there are any."""
    limited = [
        measured["highest"]["client_limited"]
        for entry in results.entries
        for protocols in entry.get("models", {}).values()
        for measured in protocols.values()
    ]
    if not any(limited):
        return ""
    return (
        f" {sum(limited)} of {len(limited)} searches ended as the client was late, which says nothing about the "
        "server: they have to be made again on a machine without other work."
    )


def _servers(results: Results) -> Iterator[str]:
    yield "## The servers"
    yield ""
    yield (
        "Each gets what its own documentation shows for batches and for the form of requests, and of the ways tried "
        "the cheapest. The Python servers run the pipelines in one process "
        "(`benchmarks/peers/shared/served_models.py`); Sluice and Triton have pipelines of their own. "
        "Programs and pinned packages are in `benchmarks/peers/`."
    )
    yield ""
    yield "| server | version | over HTTP | gRPC | |"
    yield "|---|---|---|---|---|"
    for peer in PEERS:
        found = results.peers.get(peer.key)
        if found is not None and "version" in found:
            forms = ", ".join(
                dict.fromkeys("V2, binary" if form is None else form.about for form in peer.forms.values())
            )
            yield f"| {peer.name} | {found['version']} | {forms} | {'V2' if peer.grpc else 'none'} | {peer.notes} |"
    failed = {
        peer.name: results.peers[peer.key]["failed"] for peer in PEERS if "failed" in results.peers.get(peer.key, {})
    }
    measured = {entry["peer"] for entry in results.entries}
    for peer in PEERS:
        if peer.key not in measured:
            failed.setdefault(peer.name, "its turn has not come yet.")
    for entry in results.entries:
        if "failed" in entry:
            name = next(peer.name for peer in PEERS if peer.key == entry["peer"])
            failed.setdefault(f"{name}, round {entry['round']}", entry["failed"].splitlines()[0])
    for name, reason in failed.items():
        yield ""
        yield f"Not measured: {name}: {reason}"


def _measured(results: Results, protocol: str) -> list[Peer]:
    return [
        peer
        for peer in PEERS
        if any(results.values(peer.key, model.name, protocol, "crowded", "rate") for model in MODELS)
    ]


def _by_model(results: Results, protocol: str, measures: tuple[Measure, ...]) -> Iterator[str]:
    peers = _measured(results, protocol)
    if not peers:
        return
    yield ""
    yield f"| {PROTOCOLS[protocol]} | {' | '.join(f'`{model.name}`' for model in MODELS)} |"
    yield "|---" * (len(MODELS) + 1) + "|"
    for peer in peers:
        cells = [_cell(results, peer, model, protocol, measures) for model in MODELS]
        yield f"| {peer.name} | {' | '.join(cells)} |"


def _cell(results: Results, peer: Peer, model: Model, protocol: str, measures: tuple[Measure, ...]) -> str:
    texts = []
    for measure in measures:
        found = median_of(results.values(peer.key, model.name, protocol, *measure.keys))
        if found is None:
            texts.append("-")
        elif len(measures) == 1 or measure.keys[-1] == "p50_ms":
            of_one_round = found.low == found.high
            interval = "" if of_one_round else f" [{measure.text(found.low)}, {measure.text(found.high)}]"
            texts.append(measure.text(found.value) + interval)
        else:
            texts.append(measure.text(found.value))
    return ", ".join(texts)


def _fixed(results: Results, protocol: str) -> Iterator[str]:
    peers = _measured(results, protocol)
    if not peers:
        return
    yield ""
    titles = [f"`{model.name}` {rate}/s" for model in MODELS for rate in model.rates]
    yield f"| {PROTOCOLS[protocol]} | {' | '.join(peer.name for peer in peers)} |"
    yield "|---" * (len(peers) + 1) + "|"
    for number, title in enumerate(titles):
        model, measures = MODELS[number // 2], at_rate(number % 2)
        cells = []
        for peer in peers:
            found = [median_of(results.values(peer.key, model.name, protocol, *each.keys)) for each in measures]
            known = [each.text(value.value) for each, value in zip(measures, found, strict=True) if value is not None]
            cells.append(", ".join(known) or "-")
        yield f"| {title} | {' | '.join(cells)} |"


def _whole_servers(results: Results) -> Iterator[str]:
    yield "Memory (PSS) of all processes with all five models, and seconds from the start to the last right answer:"
    yield ""
    yield "| | memory, MB | start, s | rounds |"
    yield "|---|---|---|---|"
    for peer in PEERS:
        entries = [entry for entry in results.entries if entry["peer"] == peer.key and "models" in entry]
        memory, start = (median_of([entry[key] for entry in entries]) for key in ("memory_mb", "start_s"))
        if memory is not None and start is not None:
            apart = " (a server a model, summed)" if peer.per_model else ""
            yield f"| {peer.name}{apart} | {memory.value:.0f} | {start.value:.1f} | {len(entries)} |"
    yield ""


def _losses(results: Results) -> Iterator[str]:
    yield "## Where another server is better"
    yield ""
    yield (
        "Every figure above in which the median of another server is better than that of Sluice; where the intervals "
        "do not overlap, the line says so."
    )
    yield ""
    lines = [
        line
        for protocol in PROTOCOLS
        for model in MODELS
        for measure in (HIGHEST, *ALONE, CROWDED, CPU)
        for line in _lost(results, protocol, model, measure)
    ]
    yield from lines or ["- None."]


def _lost(results: Results, protocol: str, model: Model, measure: Measure) -> Iterator[str]:
    ours = median_of(results.values(OURS, model.name, protocol, *measure.keys))
    better = []
    for peer in PEERS:
        theirs = median_of(results.values(peer.key, model.name, protocol, *measure.keys))
        if peer.key != OURS and ours is not None and theirs is not None and _better(measure, theirs.value, ours.value):
            apart = theirs.low > ours.high if measure.more_is_better else theirs.high < ours.low
            apart = apart and len(results.values(peer.key, model.name, protocol, *measure.keys)) >= FEWEST_ROUNDS
            better.append(f"{peer.name} {measure.text(theirs.value)}{' (intervals apart)' if apart else ''}")
    if better and ours is not None:
        yield (
            f"- `{model.name}`, {PROTOCOLS[protocol]}, {measure.title}: Sluice {measure.text(ours.value)}; "
            f"{', '.join(better)}"
        )


def _better(measure: Measure, one: float, other: float) -> bool:
    return one > other if measure.more_is_better else one < other
