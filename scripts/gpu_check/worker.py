"""A process with a CUDA context that answers requests for measurements, one line of JSON each."""

import ctypes
import json
import os
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

MIB = 1 << 20


class TorchWorker:
    """ResNet50 in half precision with random weights; CUDA graphs keep the host's time out of the measurement."""

    def __init__(self) -> None:
        torch = self._torch = import_module("torch")
        torch.ones(1, device="cuda")  # only a process with a context is a client of MPS
        self._properties = torch.cuda.get_device_properties(0)
        self._graphs: dict[int, Any] = {}
        self._model: Any = None
        self._held: list[Any] = []

    def hello(self) -> dict[str, Any]:
        """Description of the device as this process sees it."""
        free, total = self._torch.cuda.mem_get_info()
        name = self._properties.name
        return {
            "sms": self._properties.multi_processor_count,
            "free_mib": free // MIB,
            "total_mib": total // MIB,
            "name": name,
            "torch": self._torch.__version__,
        }

    def latency(self, batch: int, seconds: float) -> dict[str, Any]:
        """Median milliseconds of a batch by device events, and by the host's clock without a graph."""
        torch = self._torch
        graph = self._graph(batch)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times: list[float] = []
        give_up = time.monotonic() + seconds
        while len(times) < 10 or (len(times) < 300 and time.monotonic() < give_up):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        eager = []
        for _ in range(5):
            started = time.perf_counter()
            with torch.inference_mode():
                self._model(self._input(batch))
            torch.cuda.synchronize()
            eager.append((time.perf_counter() - started) * 1000)
        return {"ms": statistics.median(times), "count": len(times), "eager_ms": statistics.median(eager)}

    def load(self, batch: int, seconds: float, start_at: float) -> dict[str, Any]:
        """Run successive batches from `start_at` on the wall clock; returns count, median and 99th percentile."""
        graph = self._graph(batch)
        time.sleep(max(0.0, start_at - time.time()))
        times = []
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            started = time.perf_counter()
            graph.replay()
            self._torch.cuda.synchronize()
            times.append((time.perf_counter() - started) * 1000)
        return summary(times)

    def allocate(self, mib: int) -> dict[str, Any]:
        """Allocate memory and keep it."""
        self._held.append(self._torch.empty(mib * MIB, dtype=self._torch.uint8, device="cuda"))
        return {}

    def check(self) -> dict[str, Any]:
        """Run a small kernel, which fails when the context is broken."""
        self._torch.ones(1024, device="cuda").sum().item()
        return {}

    def _input(self, batch: int) -> Any:
        return self._torch.randn(batch, 3, 224, 224, device="cuda", dtype=self._torch.float16)

    def _graph(self, batch: int) -> Any:
        torch = self._torch
        if self._model is None:
            self._model = _network(torch).eval().half().cuda()
        if batch not in self._graphs:
            given = self._input(batch)
            with torch.inference_mode():
                side = torch.cuda.Stream()
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self._model(given)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._model(given)
            graph.replay()
            torch.cuda.synchronize()
            self._graphs[batch] = graph
        return self._graphs[batch]


def _network(torch: Any) -> Any:
    try:
        network = import_module("torchvision.models").resnet50
    except ImportError:  # convolutions with about as much arithmetic
        layers = [torch.nn.Conv2d(3, 256, 7, 4, 3)]
        for _ in range(8):
            layers += [torch.nn.ReLU(), torch.nn.Conv2d(256, 256, 3, 1, 1)]
        return torch.nn.Sequential(*layers)
    return network(weights=None)


class DriverWorker:
    """A context without PyTorch: the quick way to the multiprocessors of a client."""

    _MULTIPROCESSOR_COUNT = 16

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._before = self._multiprocessors()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)

    def hello(self) -> dict[str, Any]:
        """Multiprocessors with the context, and before it."""
        return {"sms": self._multiprocessors(), "sms_before": self._before}

    def _multiprocessors(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(count), self._MULTIPROCESSOR_COUNT, self._device)
        return count.value

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._cuda, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {status}")


class FakeWorker:
    """The same interface on the fake MPS, with the latencies of ResNet50 on a V100, for dry runs."""

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        fake = import_module("tests.support.gpu.fake_mps")
        self._cuda = fake.FakeCuda(os.environ)
        self._share = self._cuda.multiprocessors / fake.SMS

    def hello(self) -> dict[str, Any]:
        """As above."""
        limit = self._cuda.limit // MIB or 81_559
        sms = self._cuda.multiprocessors
        return {"sms": sms, "sms_before": sms, "free_mib": limit, "total_mib": limit, "name": "fake", "torch": ""}

    def latency(self, batch: int, seconds: float) -> dict[str, Any]:
        """As above."""
        self._cuda.check()
        bound, work = 2.311, 1.398 + batch * (0.5571 / self._share + 0.1021)
        milliseconds = (bound**5.36 + work**5.36) ** (1 / 5.36)
        return {"ms": milliseconds, "count": 10, "eager_ms": milliseconds}

    def load(self, batch: int, seconds: float, start_at: float) -> dict[str, Any]:
        """As above."""
        return summary([self.latency(batch, seconds)["ms"]] * 10)

    def allocate(self, mib: int) -> dict[str, Any]:
        """As above."""
        self._cuda.allocate(mib * MIB)
        return {}

    def check(self) -> dict[str, Any]:
        """As above."""
        self._cuda.check()
        return {}


def summary(times: list[float]) -> dict[str, Any]:
    """Count, median and 99th percentile of batch times."""
    ordered = sorted(times)
    return {"count": len(ordered), "p50_ms": statistics.median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]}


def main() -> int:
    """Answer requests until the input ends; the argument is the kind of worker: `torch`, `driver` or `fake`."""
    begun = time.monotonic()
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        worker: Any = {"torch": TorchWorker, "driver": DriverWorker, "fake": FakeWorker}[sys.argv[1]]()
        first = {"ok": True, **worker.hello(), "start_s": round(time.monotonic() - begun, 3)}
    except Exception as error:
        first = _error(error)
    print(json.dumps(first), file=answers, flush=True)
    if not first["ok"]:
        return 1
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"ok": True, **getattr(worker, question.pop("op"))(**question)}
        except Exception as error:
            answer = _error(error)
        print(json.dumps(answer), file=answers, flush=True)
    return 0


def _error(error: Exception) -> dict[str, Any]:
    return {"ok": False, "error": type(error).__name__, "text": str(error)[:1000]}


if __name__ == "__main__":
    sys.exit(main())
