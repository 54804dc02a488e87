"""`scripts/gpu_check` on a fake card with a fake MPS."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu.recorded import recorded

ROOT = Path(__file__).resolve().parents[2]


def findings(directory: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_check"), "--dry-run", "--out", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    parts: dict[str, Any] = json.loads((directory / "gpu_check.json").read_text())["parts"]
    return done.stdout, parts


def test_every_part_reports_its_findings(tmp_path: Path) -> None:
    printed, parts = findings(tmp_path, "--parts", "card,mps,sweep,memory,pairs,change,terminate,static")
    assert {name: found["status"] for name, found in parts.items()} == dict.fromkeys(
        ("card", "mps", "sweep", "memory", "pairs", "change", "terminate", "static", "end"), "ok"
    )
    assert len(parts["card"]["cards"][0]["profiles"]) == 7
    assert parts["mps"]["no_daemon"]["err"] == "Cannot find MPS control daemon process\n"
    assert parts["mps"]["second_daemon"]["out"] == "An instance of this daemon is already running\n"
    assert parts["mps"]["attached"] is True
    rows = {row["share"]: row for row in parts["sweep"]["rows"]}
    assert {share: row["hello"]["sms"] for share, row in rows.items()} == {
        None: 132, 10: 12, 20: 26, 25: 32, 40: 52, 50: 66, 60: 78, 80: 104, 100: 132,
    }  # fmt: skip
    assert set(rows[25]["latency"]) == {"1", "4", "16", "64"}
    assert parts["sweep"]["share_25_without_daemon"]["sms"] == 132
    assert [parts["memory"][key]["ok"] for key in ("within", "beyond", "after", "server_limit")] == [
        True, False, True, False,
    ]  # fmt: skip
    assert [row["mps"] for row in parts["pairs"]["rows"]] == [True] * 6 + [False] * 2
    assert (parts["change"]["old_hello"]["sms"], parts["change"]["new"]["hello"]["sms"]) == (132, 32)
    assert (parts["terminate"]["victim"]["text"], parts["terminate"]["neighbour"]["ok"]) == ("CUDA error 810", True)
    assert parts["static"]["inside"]["sms"] == 32
    assert parts["static"]["without_variable"]["ok"] is False
    assert parts["end"]["left"] == []
    assert "25 %   32" in printed


def answers(recording: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """The answers of a daemon by its state, with words in place of the numbers and names of one run."""
    (server,) = (each["out"].strip() for each in recording["one_client"] if each["command"] == "get_server_list")
    (client,) = (each["out"].strip() for each in recording["one_client"] if each["command"].startswith("get_client_"))
    parts = ("no_daemon", "no_server", "start_server", "no_client", "one_client", "client_gone", "refused", "settings")

    def plain(text: str) -> str:
        for number, word in ((server, "SERVER"), (client, "CLIENT")):
            text = re.sub(rf"\b{number}\b", word, text)
        return re.sub(r"-uid \d+", "-uid UID", re.sub(r"[\w/.-]*python[\w.]*", "PROGRAM", re.sub(" +", " ", text)))

    return {
        part: [
            tuple(plain(str(each[key])) for key in ("command", "rc", "out", "err"))
            for each in (recording[part] if isinstance(recording[part], list) else [recording[part]])
        ]
        for part in parts
    }


def test_the_fake_daemon_answers_as_a_real_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", '{"protocols": [2], "without": ["static"]}')
    _, parts = findings(tmp_path, "--parts", "mps")
    assert answers(parts["mps"]) == answers(recorded("mps"))


def test_parts_without_time_left_are_skipped(tmp_path: Path) -> None:
    _, parts = findings(tmp_path, "--parts", "sweep,static", "--seconds", "20")
    assert {name: found["status"] for name, found in parts.items()} == {
        "sweep": "skipped: no time left",
        "static": "skipped: no time left",
        "end": "ok",
    }


@pytest.mark.timed
def test_sluice_itself_serves_a_cascade_and_accounts_for_every_request(tmp_path: Path) -> None:
    _, parts = findings(tmp_path, "--parts", "served")
    assert parts["served"]["status"] == "ok"
    replay = parts["served"]["replay"]
    assert (replay["sent"], replay["unanswered"], replay["correct"]) == (899, 0, 888)
    assert parts["served"]["exit"] == 0
    assert [each["enforcement"] for each in parts["served"]["partitions"]["partitions"]] == ["enforced"]
