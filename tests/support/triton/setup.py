"""Installs a real Triton server for CPUs under `.cache/triton`, from the pytriton wheel.

The wheel's Python backend supports NumPy 1 only (with NumPy 2 its outputs are silently empty), so models run in an
environment of their own.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

WHEEL = "nvidia-pytriton==0.7.0"
DIRECTORY = Path(__file__).parents[3] / ".cache" / "triton"
TIMEOUT_S = 300.0
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
_SERVER = Path("wheel", "pytriton", "tritonserver")


class TritonUnavailable(Exception):
    """Triton cannot be installed here; the message gives the reason."""


def set_up() -> Path:
    """Install Triton if needed (up to a minute where wheels download quickly); returns its folder.

    Raises TritonUnavailable. When several processes call this at once, one installs and the others wait.
    """
    stamp = f"{WHEEL} python{sysconfig.get_python_version()} onnxruntime=={_onnxruntime()}\n"
    if not _is_complete(stamp):
        try:
            with scratch_of(DIRECTORY) as scratch:
                if not _is_complete(stamp):
                    _unpack_wheel(scratch)
                    _make_backend(scratch)
                    _make_environment(scratch)
                    (scratch / "complete").write_text(stamp)
                    shutil.rmtree(DIRECTORY, ignore_errors=True)
                    scratch.rename(DIRECTORY)
        except OSError as error:
            raise TritonUnavailable(f"Triton could not be set up: {error}") from error
    return DIRECTORY


@contextmanager
def scratch_of(directory: Path) -> Iterator[Path]:
    """An empty folder beside `directory`, to be renamed to it; a lock keeps other processes out meanwhile."""
    scratch, lock = (directory.with_name(f"{directory.name}.{suffix}") for suffix in ("new", "lock"))
    directory.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def command(directory: Path) -> tuple[list[str], dict[str, str]]:
    """The start of Triton's command line, and its environment."""
    binary = directory / _SERVER / "bin" / "tritonserver"
    libraries = [str(directory / "wheel" / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PATH": os.pathsep.join([str(directory / "models" / "bin"), os.environ["PATH"]]),
    }
    return [str(binary), f"--backend-directory={directory / 'backends'}"], environment


def _is_complete(stamp: str) -> bool:
    try:
        return (DIRECTORY / "complete").read_text() == stamp
    except OSError:
        return False


def _onnxruntime() -> str:
    """The installed version of ONNX Runtime; equal versions compute equal numbers."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise TritonUnavailable("neither onnxruntime nor onnxruntime-gpu is installed")


def _unpack_wheel(scratch: Path) -> None:
    _run(sys.executable, *_PIP, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch), WHEEL)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch / "wheel")
    wheel.unlink()
    (scratch / _SERVER / "bin" / "tritonserver").chmod(0o755)


def _make_backend(scratch: Path) -> None:
    version = sysconfig.get_python_version()
    stub = scratch / _SERVER / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise TritonUnavailable(f"{WHEEL} has no Python backend for Python {version}")
    backend = scratch / "backends" / "python"
    shutil.copytree(scratch / _SERVER / "backends" / "python", backend)
    shutil.copy(stub, backend)
    (backend / stub.name).chmod(0o755)


def _make_environment(scratch: Path) -> None:
    environment = scratch / "models"
    _run(sys.executable, "-m", "venv", str(environment))
    packages = ("numpy<2", f"onnxruntime=={_onnxruntime()}")
    _run(str(environment / "bin" / "python3"), *_PIP, "install", "--only-binary", ":all:", *packages)


def _run(*arguments: str) -> None:
    try:
        subprocess.run(arguments, check=True, timeout=TIMEOUT_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise TritonUnavailable(f"Triton could not be set up: {arguments[-1]}: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise TritonUnavailable(f"Triton could not be set up: {arguments[-1]} took over {TIMEOUT_S:g} s") from error


if __name__ == "__main__":
    try:
        print(f"Triton is in {set_up()}")
    except TritonUnavailable as error:
        sys.exit(str(error))
