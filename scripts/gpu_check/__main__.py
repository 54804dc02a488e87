"""Measures the behaviour of MPS on a GPU: `python3 scripts/gpu_check`, for a bare machine with a card and PyTorch.

The script needs only these files, PyTorch and nvidia-ml-py, and no network. It changes no setting of the card (clocks,
compute mode, MIG layout) and resets nothing. It starts an MPS daemon of its own and stops it at the end. Parts fail
independently. The findings are written to gpu_check.json after every step; the exit status is 0.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import card
import parts
import served
from record import Record, Skipped

SECONDS = 470
"""Time limit for all parts: a running part is interrupted, and later parts are skipped."""
LAST_S = 20
"""Seconds reserved for stopping everything at the end."""


def main() -> int:
    """Run the parts and print a table."""
    options = _options()
    if options.dry_run:
        sys.path.insert(0, str(served.ROOT))
    record = Record(options.out, dry_run=options.dry_run)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupted)
    signal.alarm(max(1, round(options.seconds)))
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="gpu", dir="/tmp") as directory:
        program = _fake_program(Path(directory)) if options.dry_run else options.control
        try:
            with card.opened(dry_run=options.dry_run) as nvml:
                device = card.first_uuid(nvml)
                bench = parts.Bench(device, program, nvml, record.save, fake=options.dry_run)
                _run_parts(bench, record, options, end)
        except Skipped as error:
            record.part("card")["status"] = f"skipped: {error}"
    print(_table(record))
    print(f"findings: {record.save()}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = Path(os.environ.get("OUT", "gpu_check_out"))
    parser.add_argument(
        "--out", type=Path, default=default, metavar="DIR", help=f"folder of the findings (default {default})"
    )
    parser.add_argument("--parts", default=",".join(_PARTS), metavar="A,B", help=f"parts to run, of {','.join(_PARTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"time limit for all parts (default {SECONDS})")
    parser.add_argument("--control", metavar="FILE", help="path of nvidia-cuda-mps-control")
    parser.add_argument("--site", type=Path, metavar="DIR", help="folder of Python packages for the part `served`")
    parser.add_argument("--dry-run", action="store_true", help="use a fake card and a fake MPS")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(_PARTS):
        parser.error(f"--parts: unknown {', '.join(sorted(unknown))}; expected some of {', '.join(_PARTS)}")
    return options


def _run_parts(bench: parts.Bench, record: Record, options: argparse.Namespace, end: float) -> None:
    wanted = options.parts.split(",")
    try:
        for name, (part, limit_s) in _PARTS.items():
            if name not in wanted:
                continue
            found = record.part(name)
            bench.end = min(time.monotonic() + limit_s, end - LAST_S)
            if not bench.has(5):
                found["status"] = "skipped: no time left"
                continue
            _run_part(name, partial(part, bench, found, options), found)
            record.save()
    except KeyboardInterrupt:
        record.part("end")["interrupted"] = True
    finally:
        signal.alarm(0)
        found = record.part("end")
        _run_part("end", lambda: _end(bench, found), found)


def _run_part(name: str, part: Callable[[], None], found: dict[str, Any]) -> None:
    begun = time.monotonic()
    print(f"{name} …", flush=True)
    try:
        part()
        found["status"] = "ok"
    except Skipped as error:
        found["status"] = f"skipped: {error}"
    except KeyboardInterrupt:
        found["status"] = "interrupted"
        raise
    except Exception as error:
        found["status"] = f"failed: {error!r}"[:1000]
        found["traceback"] = traceback.format_exc()[-3000:]
    found["seconds"] = round(time.monotonic() - begun, 1)


def _end(bench: parts.Bench, found: dict[str, Any]) -> None:
    found["stop"] = bench.stop()
    found["used_mib"] = card.used_mib(bench.nvml)
    found["left"] = left = [pid for stop in _stops(found) for pid in stop]
    if left:
        raise RuntimeError(f"MPS processes still running: {left}")


def _stops(found: dict[str, Any]) -> list[list[int]]:
    return [found["stop"]["left"]] if found["stop"] else []


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _fake_program(directory: Path) -> str:
    program: str = import_module("tests.support.gpu.fake_mps").install(directory)
    return program


def _table(record: Record) -> str:
    """The status of each part, and multiprocessors and latencies by share."""
    lines = [f"{name:10} {found.get('seconds', 0):7.1f} s  {found.get('status', '-')}"
             for name, found in record.parts.items()]  # fmt: skip
    rows = record.parts.get("sweep", {}).get("rows", [])
    if rows:
        lines.append(f"\n{'share':>7} {'SMs':>4} {'start s':>7}  ms at batch " + " / ".join(map(str, parts.BATCHES)))
    for row in rows:
        hello = row.get("hello", {})
        times = [row.get("latency", {}).get(batch, {}).get("ms") for batch in parts.BATCHES]
        listed = " / ".join("-" if each is None else f"{each:.2f}" for each in times)
        share = "no MPS" if row["share"] is None else f"{row['share']} %"
        lines.append(f"{share:>7} {hello.get('sms', '-'):>4} {hello.get('start_s', '-'):>7}  {listed}")
    return "\n".join(lines)


def _alone(part: Callable[[parts.Bench, dict[str, Any]], None]) -> Callable[..., None]:
    return lambda bench, found, options: part(bench, found)


_PARTS: dict[str, tuple[Callable[[parts.Bench, dict[str, Any], argparse.Namespace], None], float]] = {
    "card": (lambda bench, found, options: card.describe(bench.nvml, found), 40),
    "mps": (_alone(parts.transcript), 60),
    "served": (lambda bench, found, options: served.serve(bench, found, options.site), 150),
    "sweep": (_alone(parts.sweep), 150),
    "memory": (_alone(parts.memory), 40),
    "change": (_alone(parts.live_change), 40),
    "terminate": (_alone(parts.terminate), 30),
    "static": (_alone(parts.static_sets), 45),
    "pairs": (_alone(parts.pairs), 110),
}
"""The parts in order, with the time limit of each in seconds."""

if __name__ == "__main__":
    sys.exit(main())
