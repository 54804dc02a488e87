"""The image of deploy/Containerfile, built and run on this machine without a registry of images."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.gateway.processes import until
from tests.support.packaging import ROOT
from tests.support.tools import require_tool

BASE = "localhost/sluice-test-base"
SUITE = "bookworm"
"""Debian's release of the base, as in the Containerfile."""
PACKAGES = "python3,python3-venv,ca-certificates"
STOP_TIMEOUT_S = 60.0
_UNUSED = ("usr/share/man/*", "usr/share/doc/*", "usr/share/locale/*")
_RUN = """
set -e
root=$1 models=$2 user=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero random urandom; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/dev/shm"
mkdir -p "$root/models"
mount --bind "$models" "$root/models"
mount -o remount,bind,ro "$root/models"
mount -o remount,bind,ro "$root"
ip link set lo up
exec chroot --userspec="$user" --groups= "$root" env -i "$@"
"""
"""The container that a runtime would make: only /tmp and /dev/shm can be written, and the network is its own."""


class Image(NamedTuple):
    """A built image: its configuration, in the words of Docker, and the directory of its files."""

    config: dict[str, Any]
    root: Path


class Container(NamedTuple):
    """A running container. `pid` is that of its process 1, on this machine."""

    image: Image
    process: subprocess.Popen[bytes]
    pid: int
    log: Path

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as its user and with its environment."""
        config = self.image.config
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--ipc", "--uts", "chroot"]
        inside += [f"--userspec={config['User']}", "--groups=", str(self.image.root), "env", "-i", *config["Env"]]
        return subprocess.run([*inside, *command], capture_output=True, text=True, check=False, timeout=60)

    def ask(self, script: str) -> str:
        """The output of a script in the Python of the tests, which has the network of the container alone."""
        command = ["nsenter", f"--target={self.pid}", "--net", sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def stop(self) -> int:
        """Send SIGTERM to process 1; returns its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def built_image(target: str, directory: Path) -> Iterator[Image]:
    """Carry out the steps of the Containerfile for a target, without the compiler; `directory` gets all files.

    The base, which is an image from a registry otherwise, is a Debian with Python from this machine's own sources of
    packages. It is kept in .cache for the next time.
    """
    program = require_tool("buildah")
    with _memory(directory):
        yield from _build(_Buildah(program, directory), _base(directory), target, directory)


@contextmanager
def _memory(directory: Path) -> Iterator[None]:
    """Keep what is written to a directory in memory: these are many small files, which are not needed for long."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "tmpfs", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _build(buildah: "_Buildah", base: Path, target: str, directory: Path) -> Iterator[Image]:
    working = buildah("from", "scratch")
    buildah("add", "--quiet", working, str(base), "/")
    buildah("commit", "--quiet", working, BASE)
    options = ["--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={BASE}", "--target", target]
    options += ["--build-arg", "COMPILE=0", *_pip_settings(directory)]
    buildah("bud", *options, "--file", str(ROOT / "deploy" / "Containerfile"), "--tag", "image", str(ROOT))
    config = json.loads(buildah("inspect", "--type", "image", "image"))["Docker"]["config"]
    container = buildah("from", "image")
    root = Path(buildah("mount", container))
    try:
        yield Image(config, root)
    finally:
        buildah("umount", container)


@contextmanager
def running(image: Image, models: Path, directory: Path) -> Iterator[Container]:
    """Run what the image runs, on a repository of models; `directory` keeps the log."""
    log = directory / "container.log"
    config = image.config
    isolated = ["unshare", "--mount", "--ipc", "--uts", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _RUN]
    command = [*isolated, "sh", str(image.root), str(models), config["User"], *config["Env"]]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *config["Entrypoint"], *config["Cmd"]], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: process.poll() is not None or bool(children.read_text()))
        assert process.poll() is None, log.read_text()
        yield Container(image, process, int(children.read_text()), log)
    finally:
        process.kill()
        process.wait()


class _Buildah:
    """The program, with a storage of its own."""

    def __init__(self, program: str, directory: Path) -> None:
        self._command = [program, "--root", str(directory / "storage"), "--runroot", str(directory / "run")]

    def __call__(self, *arguments: str) -> str:
        """The output of a command."""
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"buildah {arguments[0]}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()


def _base(scratch: Path) -> Path:
    """The archive of a Debian with Python and, as in the images of registries, apt with what that needs."""
    program = require_tool("mmdebstrap")
    kept = ROOT / ".cache" / f"image-base-{SUITE}.tar"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}.tar")
        options = ["--mode=root", "--variant=apt", f"--include={PACKAGES}", "--dpkgopt=force-unsafe-io"]
        options += ['--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude=/{each}" for each in _UNUSED)]
        done = subprocess.run(
            [program, *options, SUITE, str(new)],
            env={**os.environ, "TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        new.replace(kept)
    return kept


def _pip_settings(directory: Path) -> list[str]:
    """The options by which pip in a step has this machine's settings and certificates."""
    settings = {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name in ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
    }
    file = directory / "pip.conf"
    file.write_text("\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items())]))
    volumes = [f"{file}:/etc/pip.conf:ro"]
    if (certificates := settings.get("cert")) is not None:
        volumes.append(f"{certificates}:{certificates}:ro")
    return [option for volume in volumes for option in ("--volume", volume)]
