"""Measures Sluice beside other servers and writes docs/evidence/peers.md: `python -m benchmarks.peers`.

Figures are kept in docs/evidence/peers.json as they come; the same command goes on from there.
"""

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import NamedTuple

import numpy as np

from benchmarks.peers import client, workload
from benchmarks.peers.client import Client, Effort, Loadgen, LoadgenFailed, samples_of
from benchmarks.peers.document import document
from benchmarks.peers.environments import NotInstalled, install
from benchmarks.peers.peer import PEERS, Peer
from benchmarks.peers.results import Figures, OtherRun, Results
from benchmarks.peers.running import PeerFailed, RunningPeer, running
from benchmarks.peers.workload import MODELS, Answers, Model, Rows
from benchmarks.support.processes import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
STEP_DOWN = 1.1
"""The search of a round starts at the median of the earlier ones, less this factor."""


class Inputs(NamedTuple):
    """The material of all servers: the ONNX files, the module of models, rows, the right answers, and the client."""

    files: Path
    served: ModuleType
    requests: dict[str, Rows]
    right: dict[str, Answers]
    loadgen: Loadgen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    keys = [peer.key for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=keys, default=keys, metavar="PEER", help=", ".join(keys))
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that all works")
    parser.add_argument(
        "--minutes", type=float, default=120.0, help="start no server when so long has been measured (default 120)"
    )
    parser.add_argument("--out", type=Path, default=EVIDENCE, metavar="DIR", help="folder of peers.md and peers.json")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the server that runs
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        results = Results(options.out / "peers.json", _settings(options.rounds, options.quick))
    except OtherRun as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    chosen = [peer for peer in PEERS if peer.key in options.peers]
    with TemporaryDirectory() as scratch:
        files = Path(scratch) / "files"
        files.mkdir()
        workload.build(files)
        served, requests = workload.served_models(files), workload.requests()
        right = {name: served.ALL[name].open()(rows) for name, rows in requests.items()}
        loadgen = Loadgen(Path(scratch))
        inputs = Inputs(files, served, requests, right, loadgen)
        models = [model for model in MODELS if model.name in options.models]
        try:
            _rounds(chosen, models, inputs, results, options.minutes, Path(scratch))
        finally:
            loadgen.end()
    (options.out / "peers.md").write_text(document(results))
    print(f"Wrote {options.out / 'peers.md'}")
    return 0


def _settings(rounds: int, quick: bool) -> Figures:
    return {
        "rounds": rounds,
        "quick": quick,
        "slo_ms": workload.SLO_MS,
        "percentile": client.PERCENTILE,
        "drain_s": client.DRAIN_S,
        "machine": f"{os.cpu_count()} cores, {_processor()}, Linux {platform.release()}",
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _rounds(
    peers: list[Peer], models: list[Model], inputs: Inputs, results: Results, minutes: float, scratch: Path
) -> None:
    environments: dict[str, Path] = {}
    for peer in peers:
        try:
            environments[peer.key], version = install(peer)
            results.peers[peer.key] = {"version": version}
        except NotInstalled as error:
            results.peers[peer.key] = {"failed": str(error)}
        print(f"{peer.name}: {results.peers[peer.key]}", flush=True)
    results.save()
    deadline = time.monotonic() + minutes * 60
    effort = client.QUICK if results.settings["quick"] else client.FULL
    for number in range(1, results.settings["rounds"] + 1):
        turn = number % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            if peer.key in environments and not results.has(number, peer.key) and time.monotonic() < deadline:
                entry = _measure(peer, environments[peer.key], number, models, inputs, results, effort, scratch)
                print(
                    f"round {number}, {peer.name}: {entry.get('failed', '')}{entry.get('took_s', 0):.0f} s", flush=True
                )
                results.add(entry)


def _measure(
    peer: Peer,
    environment: Path,
    number: int,
    models: list[Model],
    inputs: Inputs,
    results: Results,
    effort: Effort,
    scratch: Path,
) -> Figures:
    """Start a server, or one after the other for each model, and measure all models."""
    began = time.monotonic()
    entry: Figures = {"round": number, "peer": peer.key, "load": os.getloadavg()[0]}
    found: dict[str, Figures] = {}
    memory_mb = start_s = 0.0
    groups = [(model,) for model in models] if peer.per_model else [tuple(models)]
    place = scratch / "server"
    try:
        for group in groups:
            names, started = tuple(model.name for model in group), time.monotonic()
            with running(
                peer, names, environment, inputs.files, place, inputs.served, inputs.requests, inputs.right
            ) as server:
                start_s += time.monotonic() - started
                for model in group:
                    found[model.name] = {
                        protocol: _model(server, model, protocol, number, inputs, results, effort, scratch)
                        for protocol in (("http", "grpc") if peer.grpc else ("http",))
                    }
                memory_mb += server.pss_mb()
    except (PeerFailed, LoadgenFailed) as error:
        return entry | {"failed": str(error)}
    return entry | {
        "models": found,
        "client_first": inputs.loadgen.goes_first,
        "memory_mb": memory_mb,
        "start_s": start_s,
        "took_s": time.monotonic() - began,
    }


def _model(
    server: RunningPeer,
    model: Model,
    protocol: str,
    number: int,
    inputs: Inputs,
    results: Results,
    effort: Effort,
    scratch: Path,
) -> Figures:
    samples = samples_of(server, model.name, protocol, inputs.requests[model.name], scratch / "samples")
    measured = Client(inputs.loadgen, server, model, protocol, samples, 1000 * number)
    fixed = [measured.at_rate(rate, effort.fixed_s) for rate in model.rates]
    known = results.values(server.peer.key, model.name, protocol, "highest", "rate")
    start = float(np.median(known)) / STEP_DOWN if known else float(model.rates[1])
    return {
        "alone": measured.alone(effort.loop_s),
        "crowded": measured.crowded(effort.loop_s),
        "fixed": fixed,
        "highest": measured.highest_rate(start, effort),
    }


if __name__ == "__main__":
    sys.exit(main())
