"""Vision models for experiments that measure a server: preparation of an image, and classifiers of some milliseconds.

Their weights are drawn by chance: they take the time of such models, and their answers mean nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from sluice.models.backends.onnxruntime import load

SIDE = 224
"""Images have as many pixels a side, as ImageNet's models take them: 150 kB as bytes, 602 kB as floats."""
CLASSES = 1000
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by channel."""
_PATCH = 32
_SPREAD = 3.0
"""The deviation of the logits, so that models are sure of some images and not of others."""

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def draw_images(count: int) -> Images:
    """Coarse pictures of chance, (images, height, width, channel)."""
    patches = np.random.default_rng(0).integers(0, 256, (count, SIDE // _PATCH, SIDE // _PATCH, 3), np.uint8)
    return patches.repeat(_PATCH, axis=1).repeat(_PATCH, axis=2)


def save_preparation(path: Path) -> None:
    """Save the model that makes floats of ImageNet's scale, channels first, of the bytes of an image."""
    scale = (1 / (255 * np.array(DEVIATION))).astype(np.float32).reshape(3, 1, 1)
    offset = (np.array(MEAN) / np.array(DEVIATION)).astype(np.float32).reshape(3, 1, 1)
    nodes = [
        helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["planes"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Sub", ["scaled", "offset"], ["y"]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", SIDE, SIDE, 3])
    planes = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3, SIDE, SIDE])
    save_graph(path, nodes, image, planes, {"scale": scale, "offset": offset})


def save_classifier(path: Path, seed: int, channels: Sequence[int]) -> None:
    """Save a network of convolutions, each with half the pixels of the one before, and a layer of all classes."""
    source = np.random.default_rng(seed)
    current, width, nodes = "x", 3, []
    weights: dict[str, Floats] = {}
    for number, height in enumerate(channels):
        side, stride = (7, 4) if not number else (3, 1)
        kernel = source.normal(0, np.sqrt(2 / (width * side**2)), (height, width, side, side)).astype(np.float32)
        weights[f"w{number}"] = kernel
        nodes += [
            helper.make_node(
                "Conv", [current, f"w{number}"], [f"c{number}"], strides=[stride] * 2, pads=[side // 2] * 4
            ),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"]),
            helper.make_node("MaxPool", [f"r{number}"], [f"p{number}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        current, width = f"p{number}", height
    weights["last"] = source.normal(0, _SPREAD, (width, CLASSES)).astype(np.float32)
    nodes += [
        helper.make_node("GlobalAveragePool", [current], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("LpNormalization", ["flat"], ["unit"], axis=1),
        helper.make_node("MatMul", ["unit", "last"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"]),
    ]
    planes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3, SIDE, SIDE])
    shares = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", CLASSES])
    save_graph(path, nodes, planes, shares, weights)


def answers(path: Path, rows: npt.NDArray[np.generic]) -> Floats:
    """The output `y` of a model for each row by itself, (rows, ...)."""
    backend = load(str(path), 1)
    return np.concatenate([np.asarray(backend.run({"x": rows[i : i + 1]})["y"], np.float32) for i in range(len(rows))])


def save_graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    takes: onnx.ValueInfoProto,
    gives: onnx.ValueInfoProto,
    weights: dict[str, Floats],
) -> None:
    """Save a model of one input and one output, named after the folder of its versions."""
    tensors = [numpy_helper.from_array(each, name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, path.parent.parent.name, [takes], [gives], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True)
    onnx.save(model, path)
