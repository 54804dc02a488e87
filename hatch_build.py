"""The build hook of wheels: with SLUICE_COMPILE=1 core and hot path are compiled by mypyc (docs/adr/0021).

Without that variable a wheel is pure Python. SLUICE_COMPILE_CACHE names a folder in which what was compiled is kept,
for builds of the same sources. What is compiled stands beside its source in the wheel, and Python prefers it.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("batcher", "gateway", "models", "mps")
"""The packages with compiled modules, or whose types they use."""
COMPILED = (
    "batcher/state.py",
    "batcher/dispatch",
    "batcher/drivers/loop_turns.py",
    "batcher/drivers/simulator.py",
    "batcher/estimates",
    "batcher/fleet",
    "batcher/instances",
    "batcher/places",
    "batcher/prediction",
    "batcher/queues",
    "batcher/residency",
    "batcher/scheduler",
    "batcher/sequences",
    "gateway/front_door/budget.py",
    "gateway/executors/hang_detector.py",
    "gateway/executors/worker",
    "gateway/front_ends/inputs.py",
    "gateway/front_ends/plane.py",
    "gateway/grpc/infer.py",
    "gateway/grpc/transport/fields.py",
    "gateway/grpc/transport/http2/call.py",
    "gateway/grpc/transport/http2/call_head.py",
    "gateway/grpc/transport/http2/connection.py",
    "gateway/grpc/transport/http2/grpc_connection.py",
    "gateway/grpc/transport/http2/messages.py",
    "gateway/grpc/transport/http2/outgoing.py",
    "gateway/grpc/transport/http2/streams.py",
    "gateway/http/exchange.py",
    "gateway/http/known_response.py",
    "gateway/http/refusal.py",
    "gateway/http/request_head.py",
    "gateway/http/turns.py",
    "gateway/http2/frames.py",
    "gateway/http2/header_blocks.py",
    "gateway/inference",
    "gateway/observability/meters.py",
    "gateway/observability/request_ids.py",
    "gateway/observability/statistics.py",
    "gateway/protocol/answer.py",
    "gateway/protocol/pending_answer.py",
    "gateway/protocol/signature.py",
    "gateway/runtime",
    "gateway/tensors",
    "mps/ipc/arena.py",
    "mps/ipc/channel.py",
    "mps/ipc/places.py",
    "mps/worker/main.py",
    "mps/worker/responses.py",
    "mps/worker/runner.py",
    "mps/worker/tensors.py",
)
"""The files and rooms that are compiled: what requests and batches go through.

The others have structs of msgspec, which mypyc cannot make, or files that users add, or work with NumPy.
"""
LIBRARY = "sluice_compiled"
"""All of it is one library, `sluice_core__mypyc`, so that calls between modules are calls of C."""
BUILD_TOOLS = ["msgspec>=0.19", "mypy>=2.4", "numpy>=1.26", "setuptools>=65"]
"""Those with NumPy and msgspec, whose types the compiled modules use."""


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, and the tag of the interpreter and the platform to its name."""

    def dependencies(self) -> list[str]:
        """Return the packages that a build needs besides hatchling."""
        return BUILD_TOOLS if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; an editable install stays pure."""
        self._scratch = tempfile.TemporaryDirectory(prefix="sluice-build-")
        if version != "standard" or not _is_wanted():
            return
        built = compiled_tree(Path(self.root), Path(self._scratch.name))
        for path in sorted(built.rglob("*.so")):
            build_data["force_include"][str(path)] = str(path.relative_to(built))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        self._scratch.cleanup()


def _is_wanted() -> bool:
    value = os.environ.get("SLUICE_COMPILE", "0")
    if value not in {"", "0", "1"}:
        raise ValueError(f"SLUICE_COMPILE: expected 1 (compile) or 0, got {value!r}")
    return value == "1"


def why_not() -> str | None:
    """Return the reason why nothing can be compiled here, None if it can."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", compiler).split()[0]) is None:
        return f"no C compiler ({os.environ.get('CC', compiler)})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return f"no headers of Python {sys.version_info.major}.{sys.version_info.minor} (Python.h)"
    return None


def compiled_tree(root: Path, scratch: Path) -> Path:
    """A folder with the compiled modules of the sources in `root`, laid out as in a wheel; about a minute on two cores.

    Raises RuntimeError where that is not possible.
    """
    if (missing := why_not()) is not None:
        raise RuntimeError(f"SLUICE_COMPILE=1: {missing}")
    cache = os.environ.get("SLUICE_COMPILE_CACHE")
    if cache is None:
        return _compile(root, scratch)
    kept = Path(cache).resolve() / f"sluice-compiled-{_key(root)}"
    if not kept.is_dir():
        built = _compile(root, scratch)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for before in kept.parent.glob("sluice-compiled-*"):
            shutil.rmtree(before)
        new = Path(tempfile.mkdtemp(prefix="new-", dir=kept.parent))
        shutil.copytree(built, new, dirs_exist_ok=True)
        try:
            new.rename(kept)
        except OSError:
            shutil.rmtree(new)
            if not kept.is_dir():  # else another build of the same sources was quicker
                raise
    return kept


def _key(root: Path) -> str:
    """Tells apart the sources, and what compiles them."""
    digest = hashlib.sha256()
    digest.update(repr((sys.version, sysconfig.get_platform(), metadata.version("mypy"))).encode())
    for path in [Path(__file__), *(path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))]:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(root: Path, scratch: Path) -> Path:
    """Compile in `scratch`: what is beside the sources would be imported from there by pure installs."""
    stage = scratch / "sluice"
    stage.mkdir()
    for name in ("__init__.py", "py.typed"):
        shutil.copy(root / "src" / "sluice" / name, stage)
    for package in PACKAGES:
        (stage / package).symlink_to(root / package)
    # A process of its own, since mypyc reads its sources by their paths from the working directory.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), *_sources(root)]
    done = subprocess.run(
        command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"SLUICE_COMPILE=1: mypyc failed:\n{done.stdout}")
    return scratch / "lib"


def _sources(root: Path) -> Iterator[str]:
    """The modules to compile, by their paths in the package.

    Raises RuntimeError for one with keywords in a class statement, which mypyc drops: a struct would lose its options.
    """
    for path in compiled_modules(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.keywords:
                place = f"{path.relative_to(root)}:{node.lineno}"
                raise RuntimeError(f"{place}: class {node.name} has keywords, so its module cannot be compiled")
        yield f"sluice/{path.relative_to(root)}"


def compiled_modules(root: Path) -> Iterator[Path]:
    """The files of the modules that are compiled."""
    for name in COMPILED:
        path = root / name
        yield from [path] if path.suffix else (each for each in sorted(path.glob("*.py")) if each.name != "__init__.py")


def _run_mypyc(sources: list[str]) -> None:
    """Compile modules below the working directory into its folder `lib`."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    # One C file a module: in one file for all, the compiler would take three times as long, on one core.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
    extensions = mypycify([*options, *sources], group_name=LIBRARY, multi_file=True, opt_level="3", debug_level="0")
    for extension in extensions:
        extension.extra_link_args.append("-Wl,-s")
    command = Distribution({"name": "sluice", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = "lib", "objects"
    command.ensure_finalized()
    build_extensions = command.build_extensions

    def build_with_all_cores() -> None:
        compile_files = command.compiler.compile

        def compile_side_by_side(files: list[str], **arguments: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda file: compile_files([file], **arguments), files)
                return [made for each in objects for made in each]

        command.compiler.compile = compile_side_by_side
        build_extensions()

    command.build_extensions = build_with_all_cores
    command.run()


if __name__ == "__main__":
    _run_mypyc(sys.argv[1:])
