"""Files of every kind that users write, and the readers that a server or a command has for them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sluice.batcher.settings.scheduling import convert_settings
from sluice.gateway.config.server_config import convert_config
from sluice.loadgen.simulation.simulation_file import SimulationFile
from sluice.models.errors import ServingError
from sluice.models.pipelines.check import check_pipeline
from sluice.models.pipelines.family import read_family
from sluice.models.pipelines.file import decode_pipeline
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.check import check_config
from sluice.models.triton_config.field_lines import with_line
from sluice.models.triton_config.pbtxt import decode_config
from sluice.models.yaml_file import load_yaml
from sluice.mps.mig.geometry import GEOMETRIES
from sluice.mps.mig.layout_file import decode_layouts
from sluice.mps.packing.file import ProfileReference, decode_packing

PATH = "models/file"


class ConfigurationFile(NamedTuple):
    """A kind of file: a right text, its reader, and the words of it that the file's author has chosen."""

    kind: str
    text: str
    read: Callable[[str], object]
    chosen: frozenset[str] = frozenset()

    def error(self, text: str) -> str | None:
        """The error that a user sees for a text; None if it is right."""
        try:
            self.read(text)
        except ServingError as error:
            return str(error)
        return None


def _model(name: str) -> ModelSpec:
    return ModelSpec(
        name,
        1,
        (TensorSpec("image", DataType.FP32, (64,)),),
        (TensorSpec("probs", DataType.FP32, (10,)),),
        64,
    )


MODELS = {f"{name}:1": _model(name) for name in ("small", "large", "medium")}


def _server(text: str) -> object:
    value, lines = load_yaml(text, PATH)
    return convert_config(value, PATH, lines)


def _pipeline(text: str) -> object:
    return check_pipeline(decode_pipeline(text, PATH), MODELS, name="cascade", path=PATH)


def _layouts(text: str) -> object:
    file = decode_layouts(text, PATH)
    return [file.wanted(index, GEOMETRIES[gpu.gpu or "H100-80"]) for index, gpu in enumerate(file.gpus)]


def _measure(reference: ProfileReference) -> int:
    return reference.batch


def _simulation(text: str) -> object:
    value, lines = load_yaml(text, PATH)
    return convert_settings(value, SimulationFile, PATH, lines=lines)


def _model_config(text: str) -> None:
    path = f"{PATH}/config.pbtxt"
    try:
        check_config(decode_config(text, path), "mlp", path)
    except ServingError as error:
        raise ServingError(with_line(str(error), path, text)) from error


_SERVER = """\
host: 127.0.0.1
http_port: 8000
partitions:
  - kind: cpu
    name: left
    cores: [0]
    memory_mb: 1GiB
control: explicit
policy:
  name: timeout
  preferred: [4, 8]
  max_delay_ms: 2ms
limits:
  queue_requests: 1000
  memory_mb: 512MiB
default_slo_ms: 250ms
strict: false
late: serve
drain_delay_s: 2s
drain_timeout_s: 10s
"""
_PIPELINE = """\
slo_ms: 50ms
late: evict
stages:
  first:
    model: small
    inputs:
      image: request.image
  second:
    model: large
    inputs:
      image: request.image
    when:
      stage: first
      output: probs
      below: 0.8
      confidence: margin
outputs:
  answer:
    from: [second.probs, first.probs]
"""
_FAMILY = """\
variants:
  - model: small
    accuracy: 0.91
  - model: medium
    accuracy: 0.94
  - model: large
    version: 1
    accuracy: 0.97
"""
_LAYOUTS = """\
gpus:
  - device: 0
    gpu: H100-80
    mig: true
    instances:
      3g.40gb: 1
      1g.10gb: 2
  - device: 1
    gpu: A100-40
    instances: [2g.10gb, 1g.5gb]
"""
_PACKING = """\
policy: pp
devices:
  gpu0: 81559
models:
  bert:
    request_mib: 6000
    serve_mib: 4GiB
    share: 0.5
  resnet:
    serve_mib: 2048
    load_mib: 3000
"""
_SIMULATION = """\
repository: repository
max_batch_size: 32
default_slo_ms: 100ms
partitions:
  - name: cpu0
    cores: 2
latency_ms:
  mlp: {1: 1.5, 8: 4}
host:
  send_us: 20
  hand_off_us: 100us
residency:
  loading: demand
  min_resident_ms: 1s
"""
_MODEL_CONFIG = """\
name: "mlp"
backend: "onnxruntime"
max_batch_size: 16
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ 64 ]
  }
]
output [
  {
    name: "y"
    data_type: TYPE_FP32
    dims: [ 10 ]
  }
]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
}
instance_group [
  {
    kind: KIND_CPU
    count: 1
  }
]
"""

FILES = (
    ConfigurationFile("server", _SERVER, _server, frozenset({"left", "127.0.0.1"})),
    ConfigurationFile("pipeline", _PIPELINE, _pipeline, frozenset({"answer"})),
    ConfigurationFile("family", _FAMILY, partial(read_family, models=MODELS, name="digits", path=PATH)),
    ConfigurationFile("layouts", _LAYOUTS, _layouts),
    ConfigurationFile(
        "packing", _PACKING, lambda text: decode_packing(text, PATH, _measure), frozenset({"gpu0", "bert", "resnet"})
    ),
    ConfigurationFile("simulation", _SIMULATION, _simulation, frozenset({"repository", "cpu0", "mlp"})),
    ConfigurationFile("config.pbtxt", _MODEL_CONFIG, _model_config, frozenset({"x", "y"})),
)
"""One file of every kind."""
