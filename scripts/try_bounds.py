"""Runs tests of both servers with the lowest and the newest versions of the packages that are bounded above.

    python scripts/try_bounds.py [--extra cpu|gpu] [--all] [lowest] [newest]

These packages are bounded because private members of them are used (docs/design/dependencies.md). Each end has a
virtual environment of its own, which is created again each time. With --all the lowest end holds every dependency at
its lower bound. The exit status is 1 when an end cannot be installed or a test fails.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDS = ("lowest", "newest")
TESTS = (
    "tests/unit/gateway/http",
    "tests/unit/gateway/grpc",
    "tests/system/test_drain.py",
    "tests/system/test_serve.py",
    "tests/system/test_tritonclient.py",
    "tests/conformance/test_endpoints.py",
    "tests/conformance/test_hostile_input.py",
    "tests/conformance/test_protocol_errors.py",
)
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,]+\])?>=(?P<lowest>[\d.]+)(?P<bounded>,<[\d.]+)?")


def pins(requirements: Sequence[str], *, unbounded: bool) -> Iterator[str]:
    """The lowest versions of those requirements that are bounded above, or of all."""
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"pyproject.toml: {requirement!r} is not name>=lowest or name>=lowest,<bound")
        if unbounded or found["bounded"]:
            yield f"{found['name']}=={found['lowest']}"


def run_end(end: str, extra: str, pinned: Sequence[str]) -> bool:
    """Install the versions of an end and run TESTS with them; False when either fails."""
    environment = ROOT / f".venv-bounds-{end}"
    venv.create(environment, clear=True, with_pip=True)
    python = str(environment / "bin" / "python")
    options = ("-qq", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:")
    print(f"{end}: {', '.join(pinned) or 'the newest versions within the bounds'}", flush=True)
    install = (python, "-m", "pip", "install", *options, *pinned, "--editable", f".[{extra},dev]")
    test = (python, "-m", "pytest", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-q", "-m", "not timed", *TESTS)
    return all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in (install, test))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the ends that are named, or both."""
    parser = argparse.ArgumentParser(description="Test the lowest and newest versions of bounded dependencies.")
    parser.add_argument("ends", nargs="*", choices=[[], *ENDS], metavar="lowest|newest", help="default: both")
    parser.add_argument("--extra", default="cpu", choices=("cpu", "gpu"), help="the build of ONNX Runtime")
    parser.add_argument("--all", action="store_true", help="hold every dependency at its lower bound")
    options = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = list(pins(project["dependencies"], unbounded=options.all))
    ends = {"lowest": lowest, "newest": []}
    passed = {end: run_end(end, options.extra, ends[end]) for end in options.ends or ENDS}
    for end, good in passed.items():
        print(f"{end}: {'passed' if good else 'failed'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
