"""The environments of the servers: one each under `.cache/peers`, with pinned packages."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.peer import Peer
from benchmarks.support.processes import ROOT
from tests.support.triton.setup import WHEEL, TritonUnavailable, set_up

ENVIRONMENTS = ROOT / ".cache" / "peers"
TIMEOUT_S = 600.0
_PIP = ("-m", "pip", "install", "-qqq", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:")


class NotInstalled(Exception):
    """A server cannot be installed here; the message gives the reason."""


def install(peer: Peer) -> tuple[Path, str]:
    """Install a server unless it is there; its environment and its version. Raises NotInstalled."""
    if peer.key == "triton":
        try:
            return set_up(), WHEEL.replace("==", " ")
        except TritonUnavailable as error:
            raise NotInstalled(str(error)) from error
    environment, wanted = ENVIRONMENTS / peer.key, peer.requirements.read_text()
    stamp = environment / "complete"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(environment)])
        _run([str(environment / "bin" / "python"), *_PIP, "-r", str(peer.requirements)])
        stamp.write_text(wanted)
    ask = f"from importlib.metadata import version; print(version('{peer.package}'))"
    return environment, _run([str(environment / "bin" / "python"), "-c", ask]).strip()


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise NotInstalled(lines[-1]) from error
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{command[-1]} took over {TIMEOUT_S:g} s") from error
