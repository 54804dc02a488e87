"""Answers of a real driver, recorded by `scripts/gpu_check` on an H200; see docs/gpu/2026-11-29-h200.md."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "fixtures" / "gpu" / "h200"
_PROGRAM = """
import json, sys
answers = json.loads({answers!r})
answer = answers[sys.stdin.readline().strip()]
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["rc"])
"""


def recorded(name: str) -> Any:
    """The contents of a recording."""
    return json.loads((RECORDED / f"{name}.json").read_bytes())


def replaying_program(directory: Path, answers: Iterable[dict[str, Any]]) -> str:
    """Write a control program that gives the recorded answers to commands; returns its path."""
    program = directory / "nvidia-cuda-mps-control"
    by_command = json.dumps({answer["command"]: answer for answer in answers})
    program.write_text(f"#!{sys.executable} -S\n{_PROGRAM.format(answers=by_command)}")
    program.chmod(0o755)
    return str(program)
