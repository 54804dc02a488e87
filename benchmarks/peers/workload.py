"""The models, the requests and the right answers of the comparison; all servers get the same."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import helper

from examples.digits.build import build_repository, load_digits, model_path
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_mlp, save_model, value

HERE = Path(__file__).parent
SHARED = HERE / "shared"
WIDE = "rf2048x2048x2048"
"""The model of the digits that is `wide` here."""
SLO_MS = 50
Rows = npt.NDArray[np.generic]
Answers = npt.NDArray[np.float32]


class Model(NamedTuple):
    """A model or pipeline: what a reader has to know about it, and the fixed rates in requests a second."""

    name: str
    about: str
    rates: tuple[int, int]


MODELS = (
    Model("mlp", "64 floats in, two layers of 128, 10 out", (200, 800)),
    Model("wide", "an image of 8 x 8, three layers of 2048: 33 MB that a batch reads once", (75, 150)),
    Model("image", "an image of 602 kB (3 x 224 x 224 floats), one convolution of stride 16", (50, 150)),
    Model(
        "digits-cascade",
        "pre-processing, a small model, and `wide` for the rows that it is less than 90 % sure of",
        (100, 300),
    ),
    Model("digits-ensemble", "pre-processing, and the mean of three models, one of them `wide`", (50, 100)),
)


def served_models(files: Path) -> ModuleType:
    """The module that the servers in Python run the models with, for the files in a folder."""
    os.environ["PEERS_FILES"] = str(files)
    specification = importlib.util.spec_from_file_location("served_models", SHARED / "served_models.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look for it
    specification.loader.exec_module(module)
    return module


def build(folder: Path) -> None:
    """Write the ONNX files, unless they are there."""
    if (folder / "image.onnx").exists():
        return
    build_repository(folder / "digits")
    for name, source in {"prep": "prep", "logreg": "logreg", "rf256": "rf256", "rbf": "rbf", "wide": WIDE}.items():
        model_path(folder / "digits", source).rename(folder / f"{name}.onnx")
    save_mlp(folder / "mlp.onnx", [64, 128, 128, 10])
    _save_image_model(folder / "image.onnx")


def _save_image_model(path: Path) -> None:
    source = np.random.default_rng(0)
    weights = {
        "kernels": source.normal(0, 0.04, (16, 3, 16, 16)).astype(np.float32),
        "w": source.normal(0, 0.3, (16, 10)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernels"], ["patches"], strides=[16, 16]),
        helper.make_node("Relu", ["patches"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["means"]),
        helper.make_node("Flatten", ["means"], ["features"]),
        helper.make_node("MatMul", ["features", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    ends = value("x", DataType.FP32, ["N", 3, 224, 224]), value("y", DataType.FP32, ["N", 10])
    save_model(path, nodes, ends[:1], ends[1:], weights)


def requests() -> dict[str, Rows]:
    """The rows of each model; a request has one of them."""
    source = np.random.default_rng(0)
    raw = load_digits().test_raw.reshape(-1, 1, 8, 8)
    return {
        "mlp": source.standard_normal((64, 64), np.float32),
        "wide": raw[:256].astype(np.float32) / 16,
        "image": source.random((8, 3, 224, 224), np.float32),
        "digits-cascade": raw,
        "digits-ensemble": raw,
    }
