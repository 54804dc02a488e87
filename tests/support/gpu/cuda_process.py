"""A process with a CUDA context, on a GPU or on the fake MPS, that executes one command a line."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.gpu.fake_mps import CudaError, FakeCuda

_ROOT = Path(__file__).resolve().parents[3]
_MULTIPROCESSOR_COUNT = 16


class Cuda:
    """A context on device 0 of a real driver."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, count, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._call(self._cuda.cuInit(0))
        self._call(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        self._call(self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._call(self._cuda.cuCtxSetCurrent(context))
        self._call(self._cuda.cuDeviceGetAttribute(ctypes.byref(count), _MULTIPROCESSOR_COUNT, device))
        self.multiprocessors = count.value

    def allocate(self, size: int) -> None:
        pointer = ctypes.c_uint64()
        self._call(self._cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))

    def check(self) -> None:
        self._call(self._cuda.cuCtxSynchronize())

    def _call(self, code: int) -> None:
        if code:
            raise CudaError(code)


class CudaProcess:
    """The parent's side of the process; `hello` is its first answer, with the CUDA error of its start, or 0."""

    def __init__(self, environment: Mapping[str, str], *, real: bool = False) -> None:
        program = f"import sys; from tests.support.gpu.cuda_process import main; sys.exit(main({real}))"
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            env={**os.environ, **environment, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.hello = self._answer()

    def ask(self, what: str, *values: int) -> int:
        """Have the process execute a command; returns the CUDA error, or 0."""
        assert self._process.stdin is not None
        print(what, *values, file=self._process.stdin, flush=True)
        return int(self._answer()["error"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": -1}')
        return found

    def close(self) -> None:
        """Let the process end by itself."""
        self._process.communicate()


def main(real: bool) -> int:
    """Run the child: execute commands until the input ends."""
    try:
        cuda = Cuda() if real else FakeCuda(os.environ)
    except CudaError as error:
        print(json.dumps({"error": error.code}), flush=True)
        return 1
    print(json.dumps({"error": 0, "sms": cuda.multiprocessors}), flush=True)
    for line in sys.stdin:
        what, *values = line.split()
        try:
            getattr(cuda, what)(*map(int, values))
            print(json.dumps({"error": 0}), flush=True)
        except CudaError as error:
            print(json.dumps({"error": error.code}), flush=True)
    return 0
