"""Ensembles written as config.pbtxt, and the models of their steps."""

from collections.abc import Mapping
from pathlib import Path

from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import DataType, TensorSpec
from sluice.models.triton_config.check import check_config
from sluice.models.triton_config.complete import complete_ensemble
from sluice.models.triton_config.pbtxt import decode_config

FP32, INT64 = DataType.FP32, DataType.INT64
RAW, X, PROBS = TensorSpec("raw", FP32, (4,)), TensorSpec("x", FP32, (3,)), TensorSpec("probs", FP32, (10,), ("a", "b"))
OPTIONAL = TensorSpec("k", FP32, (4,), optional=True)
SPECS = [
    ModelSpec("prep", 1, (RAW,), (X, TensorSpec("n", INT64, (1,))), 8),
    ModelSpec("net", 1, (X,), (PROBS,), 8),
    ModelSpec("net", 3, (X,), (PROBS,), 8),
    ModelSpec("any", 1, (TensorSpec("x", FP32, (-1,)),), (PROBS,), 8),
    ModelSpec("pair", 1, (X, TensorSpec("probs", FP32, (10,))), (TensorSpec("y", FP32, (1,)),), 8),
    ModelSpec("small", 1, (X,), (PROBS,), 2),
    ModelSpec("fixed", 1, (X,), (PROBS,), 0),
    ModelSpec("back", 1, (TensorSpec("probs", FP32, (10,)),), (X,), 8),
    ModelSpec("v2.5", 1, (X,), (X,), 8),
    ModelSpec("rows", 1, (TensorSpec("x", FP32, (2, 3)),), (PROBS,), 0),
    ModelSpec("any_rows", 1, (TensorSpec("x", FP32, (-1, 3)),), (TensorSpec("x", FP32, (-1, 3)),), 0),
    ModelSpec("some", 1, (X, OPTIONAL), (PROBS,), 8),
]
MODELS = {spec.key: spec for spec in SPECS}

HEAD = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 10 }
"""
PREP = """
step {
  model_name: "prep" model_version: -1
  input_map { key: "raw" value: "IN" }
  output_map { key: "x" value: "mid" }
}
"""
NET = """
step {
  model_name: "net" model_version: -1
  input_map { key: "x" value: "mid" }
  output_map { key: "probs" value: "OUT" }
}
"""


def ensemble(steps: str = PREP + NET, head: str = HEAD, inner: Mapping[str, Pipeline | None] | None = None) -> Pipeline:
    config = decode_config(f"{head}\nensemble_scheduling {{ {steps} }}", "e/config.pbtxt")
    check_config(config, "e", "e/config.pbtxt")
    return complete_ensemble(config, MODELS, inner or {}, "e", 1, Path("e/config.pbtxt"))
