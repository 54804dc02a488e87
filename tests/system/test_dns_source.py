"""Look-ups by the resolver of the system, from a real server of DNS."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.packaging import ROOT
from tests.support.tools import require_tool

NAMES = {
    "workers.test": ["10.0.0.10", "10.0.0.9", "10.1.0.1"],
    "empty.test": [],
    "missing.test": None,
    "many.test": [f"10.2.0.{number}" for number in range(1, 25)],
}


def test_a_name_has_the_addresses_of_dns_and_a_silent_server_is_an_error(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [
        *(require_tool("unshare"), "--mount", "--net", *rights),
        *("sh", "-c", f'mount --bind {resolver} /etc/resolv.conf && exec "$@"', "sh"),
        *(sys.executable, "-m", "tests.support.dns_server", json.dumps(NAMES)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answered"] == {
        "workers.test": ["10.0.0.9:9001", "10.0.0.10:9001", "10.1.0.1:9001"],
        "empty.test": [],
        "missing.test": [],
        "many.test": [f"10.2.0.{number}:9001" for number in range(1, 25)],
    }
    assert found["unanswered"] == "gaierror"
