"""Writes deploy/constraints.txt, the versions of all packages in the images: `python -m scripts.pins`.

They are those that pip would install now, for each of the two builds of ONNX Runtime and with all extras for users.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deploy" / "constraints.txt"
GPU = ("gpu", "onnxruntime-gpu[cuda,cudnn]")
"""The extra for GPUs, and the requirement that brings the libraries of CUDA, as in the Containerfile."""
_HEAD = "# The versions of the packages in the images. Written by `python -m scripts.pins`.\n"
_OWN = "sluice-gateway"


def main() -> int:
    """Write the file; returns the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = sorted(project["optional-dependencies"].keys() - {"cpu", "gpu", "dev"})
    found: dict[str, str] = {}
    for kind, *further in (("cpu",), GPU):
        for name, version in _resolved(f"{ROOT}[{','.join((kind, *extras))}]", *further):
            if found.setdefault(name, version) != version:
                print(f"{name}: {version} with {kind}, but {found[name]} without", file=sys.stderr)
                return 1
    lines = [f"{name}=={version}\n" for name, version in sorted(found.items())]
    FILE.write_text(_HEAD + "".join(lines), encoding="utf-8")
    return 0


def _resolved(*requirements: str) -> Iterator[tuple[str, str]]:
    """The names and versions of the packages that pip would install, without downloading them."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *requirements], check=True)
        installed: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    for each in installed:
        name = re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower()
        if name != _OWN:
            yield name, each["metadata"]["version"]


if __name__ == "__main__":
    sys.exit(main())
